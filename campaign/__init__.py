"""A campaign against fedseal itself: hostile files, hostile clients, odd updates, kills and faults, counted.

`python -m campaign` tries 1,000 inputs and a few kills in some minutes, `--full` ten times as many. Every count it
prints of something that must not happen is to be zero; the table of docs/reliability.md is its output.
"""
