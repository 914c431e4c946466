"""One round of data collaboration at the server (DC-CFL): total variation, integration, training, choice.

Arrays only. Nothing is imported here: the distance is wanted without torch.
"""
