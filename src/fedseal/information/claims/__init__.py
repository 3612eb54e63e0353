"""What a configuration of somebody's differential privacy claims, beside the epsilon it really has.

`files` reads configurations as people have them, `recognition` finds the mechanisms in them, `flower`, `nvflare` and
`opacus` say what their parameters mean in the libraries' own code, `opinions` asks several accountants, `rehearsals`
runs the libraries' own code on canaries, `check` puts claim, account, traps and evidence together.
"""
