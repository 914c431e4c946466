"""A site's half of a secure sum.

`participant` is the protocol, without disk or messages; `credentials` say who a site is and whom it believes;
`session_file` is what it must not forget between two messages; `answers` are its messages.
"""
