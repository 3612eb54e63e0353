"""`fedseal-supernode`: Flower's SuperNode behind a door that the site's policy keeps, whatever app arrives.

The door stands in the SuperNode's own process, at its connection to the SuperLink. Apps run in other processes and
have no hand there: what they answer is rebuilt from what the policy lets out, or refused in words.
"""
