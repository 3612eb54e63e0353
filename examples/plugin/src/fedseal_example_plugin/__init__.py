"""What plugs into fedseal from outside: one attack, one defence, one metric."""
