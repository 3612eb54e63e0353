"""Where images come from: embedded in packages, local files, package registries; and how they are split."""
