"""Image pipeline without downloaded weights: Stable Diffusion as `diffusers` builds it, tiny and with random weights.

It has every part of the real pipeline: a tokenizer, a text encoder, the denoising network, the pixel autoencoder.
Its pictures show nothing, but depend on the prompt, the seed, and the picture that is edited. It runs in its own environment.
"""

from dataclasses import dataclass

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from PIL.Image import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

STEPS = 4
STRENGTH = 0.5
"""Strength of an edit: the share of the picture that is painted anew."""

_WIDTH = 32
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-"
_BEGIN, _END = "<|startoftext|>", "<|endoftext|>"
_LONGEST = 77


@dataclass(frozen=True, slots=True)
class Asked:
    """Parameters of the requested pictures."""

    prompt: str
    negative: str = ""
    count: int = 1
    steps: int = STEPS
    seed: int = 0


class Painter:
    """Two pipelines that share their parts."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self._making = StableDiffusionPipeline(
            vae=_coder(),
            text_encoder=_encoder(),
            tokenizer=_tokenizer(),
            unet=_network(),
            scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
            safety_checker=None,
            feature_extractor=None,
            image_encoder=None,
            requires_safety_checker=False,
        )
        self._making.set_progress_bar_config(disable=True)
        self._editing = StableDiffusionImg2ImgPipeline(
            **self._making.components, requires_safety_checker=False
        )
        self._editing.set_progress_bar_config(disable=True)

    def make(self, inputs: Asked, width: int, height: int) -> list[Image]:
        """Paint pictures; width and height are multiples of 8."""
        output = self._making(
            [inputs.prompt] * inputs.count,
            negative_prompt=[inputs.negative] * inputs.count,
            width=width,
            height=height,
            num_inference_steps=inputs.steps,
            generator=torch.Generator().manual_seed(inputs.seed),
        )
        return list(output.images)

    def edit(self, inputs: Asked, image: Image) -> list[Image]:
        """Paint pictures from an existing one, with the strength of an edit."""
        output = self._editing(
            [inputs.prompt] * inputs.count,
            negative_prompt=[inputs.negative] * inputs.count,
            image=image,
            strength=STRENGTH,
            num_inference_steps=inputs.steps,
            generator=torch.Generator().manual_seed(inputs.seed),
        )
        return list(output.images)


def _tokenizer() -> CLIPTokenizer:
    words = [_BEGIN, _END, *_LETTERS, *(f"{letter}</w>" for letter in _LETTERS)]
    vocabulary = {word: index for index, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=_LONGEST)


def _encoder() -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=2 + 2 * len(_LETTERS),
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
            hidden_size=_WIDTH,
            intermediate_size=_WIDTH,
            num_attention_heads=4,
            num_hidden_layers=2,
        )
    ).eval()


def _network() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        block_out_channels=(_WIDTH, 2 * _WIDTH),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=_WIDTH,
    ).eval()


def _coder() -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(_WIDTH,) * 4,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        sample_size=64,
    ).eval()
