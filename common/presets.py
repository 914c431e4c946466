"""Encoders that have a name of their own: what each is made of, what its images must look like, and where it is from.

Facts alone, for a server has no encoder: `client/presets.py` builds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# Encoders whose weights are a Python package, and timm's name for their architecture.
PACKAGED = {"efficientnet_lite0": "tf_efficientnet_lite0", "efficientnet_lite2": "tf_efficientnet_lite2"}
PACKAGED_WIDTH = 1280
# What they were made for: values between -1 and 1.
PACKAGED_SCALE = (0.5, 0.5, 0.5)

Scale = tuple[float, float, float]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preset:
    """A published encoder.

    Attributes
    ----------
    images
        What it was trained on.
    licence
        Of the weights, as far as known; read it at the source before use.
    architecture, arguments
        The library's name for the network, and what must be said beside it. Of transformers: a configuration.
    dimension
        Length of an embedding.
    hub
        Its repository there; empty: the weights are a file that one asks its authors for.
    library
        What makes the network.
    size
        Side in pixels of its images.
    mean, std
        Of its images, between 0 and 1.
    pooling
        What becomes of its tokens; "own": what the library makes of them, which is one vector.
    without
        What tensors of the published file begin with that the encoder does not have.
    untrained
        What tensors begin with that the published file may lack: they stay as they are made, 1 and 0.
    """

    images: str
    licence: str
    architecture: str
    dimension: int
    hub: str = ""
    library: Literal["timm", "transformers"] = "timm"
    arguments: Mapping[str, object] = field(default_factory=dict)
    size: int = 224
    mean: Scale = IMAGENET_MEAN
    std: Scale = IMAGENET_STD
    pooling: Literal["own", "class", "class and mean"] = "own"
    without: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()


_NO_DERIVATIVES = "CC BY-NC-ND 4.0"
_WIDE = {"mlp_layer": "swiglu", "act_layer": "silu"}
_OPTIMUS: Mapping[str, object] = {"img_size": 224, "init_values": 1e-5, "dynamic_img_size": False}
_OPTIMUS_MEAN, _OPTIMUS_STD = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)

PRESETS: Mapping[str, Preset] = {
    "chief": Preset(
        images="histology (tiles)",
        licence="AGPL 3.0",
        architecture="swin_tiny_patch4_window7_224",
        dimension=768,
        arguments={"embed_layer": "convolutions"},
    ),
    "usfm": Preset(
        images="ultrasound",
        licence="as its authors grant it",
        architecture="beit_base_patch16_224",
        dimension=768,
        arguments={
            "use_shared_rel_pos_bias": True,
            "use_rel_pos_bias": False,
            "init_values": 0.1,
            "global_pool": "avg",
        },
        without=("mask_token", "norm."),
        untrained=("fc_norm.",),
    ),
    "uni": Preset(
        images="histology (tiles)",
        licence=_NO_DERIVATIVES,
        architecture="vit_large_patch16_224",
        dimension=1024,
        hub="MahmoodLab/UNI",
        arguments={"img_size": 224, "init_values": 1e-5, "dynamic_img_size": True},
    ),
    "uni2-h": Preset(
        images="histology (tiles)",
        licence=_NO_DERIVATIVES,
        architecture="vit_giant_patch14_224",
        dimension=1536,
        hub="MahmoodLab/UNI2-h",
        arguments={
            "img_size": 224,
            "depth": 24,
            "num_heads": 24,
            "init_values": 1e-5,
            "embed_dim": 1536,
            "mlp_ratio": 2.66667 * 2,
            "no_embed_class": True,
            "reg_tokens": 8,
            "dynamic_img_size": True,
            **_WIDE,
        },
    ),
    "virchow2": Preset(
        images="histology (tiles)",
        licence=_NO_DERIVATIVES,
        architecture="vit_huge_patch14_224",
        dimension=2560,
        hub="paige-ai/Virchow2",
        arguments={
            "img_size": 224,
            "init_values": 1e-5,
            "mlp_ratio": 5.3375,
            "reg_tokens": 4,
            "global_pool": "",
            "dynamic_img_size": True,
            **_WIDE,
        },
        pooling="class and mean",
    ),
    "h-optimus-0": Preset(
        images="histology (tiles)",
        licence="Apache 2.0",
        architecture="vit_giant_patch14_reg4_dinov2",
        dimension=1536,
        hub="bioptimus/H-optimus-0",
        arguments=_OPTIMUS,
        mean=_OPTIMUS_MEAN,
        std=_OPTIMUS_STD,
    ),
    "h-optimus-1": Preset(
        images="histology (tiles)",
        licence=_NO_DERIVATIVES,
        architecture="vit_giant_patch14_reg4_dinov2",
        dimension=1536,
        hub="bioptimus/H-optimus-1",
        arguments=_OPTIMUS,
        mean=_OPTIMUS_MEAN,
        std=_OPTIMUS_STD,
    ),
    "gigapath": Preset(
        images="histology (tiles)",
        licence="Apache 2.0, for research",
        architecture="vit_giant_patch14_dinov2",
        dimension=1536,
        hub="prov-gigapath/prov-gigapath",
        arguments={"img_size": 224, "patch_size": 16, "init_values": 1e-5, "global_pool": "token"},
    ),
    **{
        f"dinov2-{size}": Preset(
            images="photographs",
            licence="Apache 2.0",
            architecture=f"vit_{size}_patch14_dinov2",
            dimension=dimension,
            hub=f"timm/vit_{size}_patch14_dinov2.lvd142m",
            without=("mask_token",),
        )
        for size, dimension in (("small", 384), ("base", 768), ("large", 1024))
    },
    **{
        f"dinov3-{size}": Preset(
            images="photographs",
            licence="DINOv3 licence",
            architecture=f"vit_{size}_patch16_dinov3",
            dimension=dimension,
            hub=f"timm/vit_{size}_patch16_dinov3.lvd1689m",
            size=256,
        )
        for size, dimension in (("small", 384), ("base", 768), ("large", 1024))
    },
    "rad-dino": Preset(
        images="chest X-rays",
        licence="MIT (once MSRLA), for research",
        architecture="dinov2",
        dimension=768,
        hub="microsoft/rad-dino",
        library="transformers",
        arguments={"image_size": 518, "patch_size": 14},
        size=518,
        mean=(0.5307,) * 3,
        std=(0.2583,) * 3,
        pooling="class",
    ),
    "phikon": Preset(
        images="histology (tiles)",
        licence="Owkin, not for commerce",
        architecture="vit",
        dimension=768,
        hub="owkin/phikon",
        library="transformers",
        arguments={"image_size": 224, "patch_size": 16},
        pooling="class",
    ),
    "phikon-v2": Preset(
        images="histology (tiles)",
        licence="Owkin, not for commerce",
        architecture="dinov2",
        dimension=1024,
        hub="owkin/phikon-v2",
        library="transformers",
        arguments={
            "image_size": 224,
            "patch_size": 16,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        pooling="class",
    ),
}

# Names that stand for a network with its weights.
NAMED = (*PACKAGED, *PRESETS)
