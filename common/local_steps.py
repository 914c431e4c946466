"""What local steps of SGD amount to: the weight with which a site's gradients enter its change."""

from __future__ import annotations


def step_weight(steps: int, *, momentum: float, rate: float = 0.0, mu: float = 0.0) -> float:
    """Return ‖a‖₁, the sum of the weights of `steps` gradients in x − x_i = rate · Σ a_k g_k (FedNova, section 4).

    c = s = 0; steps times { c ← ρ c + 1 − η μ s; s ← s + c }; ‖a‖₁ = s, with momentum ρ, rate η and the pull μ towards
    the start. Without momentum and pull that is the number of steps. Weight decay is part of the loss and changes
    nothing.
    """
    if mu == 0:
        # In closed form: the number of steps may be somebody else's word.
        if momentum == 0:
            return float(steps)
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    velocity = weight = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - rate * mu * weight
        weight += velocity
    return weight
