"""The last step at a site, if the run asks for it: a model of its own beside its group's."""

from client.personal.last_step import Kept, Personalisation

__all__ = ["Kept", "Personalisation"]
