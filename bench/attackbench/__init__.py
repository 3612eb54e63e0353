"""Parts of `bench/attacks.py`, which compares fedseal's attacks with those of breaching."""
