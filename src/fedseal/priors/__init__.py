"""What an attacker believes of images before it sees an update, learned from public ones.

Four kinds: `patch` (a Gaussian mixture over patches), `diffusion` (a denoising network), `ae` (an auto-encoder) and
`gan` (a small DCGAN). The first two denoise, the last two generate; attacks take them by name or from a file.
"""
