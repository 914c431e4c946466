"""What a site answers, whatever a run asks for: the rules it has set itself, and the ledger of what it was asked.

`policy` are the settings, `rules` hold a question against them, `ledger` is the site's own record on its disk, and
`gate` is the one object that the app asks before it reads any data and before an answer leaves. `words` says it to
people. A site of a simulation, which nobody has set up, has an open gate.
"""
