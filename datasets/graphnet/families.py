"""Families of GraphNet samples: which architecture a sample is of, and which are for testing only.

Knows names only; never opens a model's code.

The rule for an architecture, first match wins:

1. Samples of transformers: the first tag of the model's card that is one of
   :data:`ARCHITECTURES`; cards list the model type among other tags.
2. The longest of :data:`ARCHITECTURES` that the sample's name contains at a word's start
   (``Jean-Baptiste_roberta-large-ner-english`` is ``roberta``). Only for transformers.
3. The name without what follows its first dot (``.a1_in1k``), without prefixes that say how a
   model is used (``pose_``, ``legacy_``), cut at the first ``_`` or ``-``, without trailing
   sizes: ``resnet50d.a1_in1k`` is ``resnet``, ``HRNetV2p-W18`` is ``hrnet``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fusewise.datasets.splits import TRAINED_COLLECTIONS

#: Training samples that are near duplicates of samples in test collections (wavlm and parakeet
#: models of torchaudio and nemo): left out, or the test split would test what was trained on.
NEAR_TEST = frozenset(
    {
        "transformers-auto-model/907508196l_wavlm-libri-clean-100h-base-plus-finetuned-ks",
        "transformers-auto-model/canary-1b-v2",
        "transformers-auto-model/hf-tiny-model-private_tiny-random-WavLMForSequenceClassification",
        "transformers-auto-model/mazkooleg_0-9up-wavlm-base-plus-ft",
    }
)

_TRANSFORMERS = "transformers-auto-model"

#: Model types of the transformers library, as its cards tag them and as names contain them.
ARCHITECTURES = tuple(
    """
    aimv2 albert align altclip aria audio-spectrogram-transformer bart beit bert bert-generation
    big_bird bigbird biogpt bit blenderbot blip blip-2 bloom bros camembert canine chinese_clip
    clap clip clipseg codegen cohere conditional_detr convbert convnext convnextv2 cpmant ctrl
    cvt dab-detr data2vec data2vec-audio data2vec-text data2vec-vision deberta deberta-v2
    decision_transformer deepseek deformable_detr deit depth_anything deta detr dino dinov2
    dinov3 distilbert dpr dpt efficientformer efficientnet electra encodec ernie esm
    exaone falcon fastspeech2 flaubert flava fnet focalnet fsmt funnel gemma gemma2 gemma3 git
    glpn gpt_bigcode gpt_neo gpt_neox gpt2 gptj granite grounding-dino groupvit helium hiera
    hubert ibert ijepa imagegpt informer jetmoe kosmos layoutlm layoutlmv2 layoutlmv3 led levit
    lilt llama longformer longt5 luke lxmert m2m_100 mamba mamba2 marian maskformer mask2former
    mbart megatron-bert mgp-str mistral mixtral mobilebert mobilenet_v1 mobilenet_v2 mobilevit
    mobilevitv2 modernbert moonshine mpnet mpt mra mt5 musicgen mvp nllb nystromformer olmo
    olmo2 oneformer opt owlv2 owlvit patchtsmixer patchtst pegasus perceiver persimmon phi phi3
    pix2struct plbart poolformer prophetnet pvt pvt_v2 qwen2 qwen3 reformer regnet rembert resnet
    roberta roberta-prelayernorm roc_bert roformer rt_detr rwkv sam seamless_m4t segformer
    seggpt sew sew-d siglip siglip2 smollm3 speech_to_text speecht5 splinter squeezebert stablelm
    starcoder2 superpoint swiftformer swin swin2sr swinv2 switch_transformers t5 t5gemma
    table-transformer tapas time_series_transformer timer timesformer trocr tvp udop umt5
    unispeech unispeech-sat univnet upernet van videomae vilt visual_bert vit vit_mae vit_msn
    vitdet vitpose vits vivit wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm whisper xclip xglm
    xlm xlm-roberta xlm-roberta-xl xlnet xmod yolos yoso zamba zoedepth
    """.split()  # noqa: SIM905 - a list of words
)

#: What names say instead of the model type.
_ALIASES = {
    "aimv2_vision_model": "aimv2",
    "big_bird": "bigbird",
    "chinese_clip": "clip",
    "data2vec-audio": "data2vec",
    "data2vec-text": "data2vec",
    "data2vec-vision": "data2vec",
    "opus": "marian",
    "opus-mt": "marian",
    "pythia": "gpt_neox",
    "robbertje": "roberta",
    "smollm2": "llama",
    "tinyllama": "llama",
    "minilm": "bert",
    "chemberta": "roberta",
    "bertimbau": "bert",
}

_KEYS = {name.replace("_", "-"): name for name in ARCHITECTURES} | {
    alias.replace("_", "-"): name for alias, name in _ALIASES.items()
}
_USE = re.compile(r"^(pose|simcc|deeppose|ipr|legacy|stt-en|test|dm)[-_]")
_SIZE = re.compile(r"(\d+x\d+\w*|\d+[a-z]{0,2}|(?<=[a-z])v\d+\w?)$")


def is_test_collection(family: str) -> bool:
    """Whether a sample, a family or a collection is of the reserved test split.

    Args:
        family: ``graphnet/mmseg/ann``, a sample's name ``mmseg/ANN_R50``, or ``mmseg``.
    """
    return family.removeprefix("graphnet/").split("/")[0] not in TRAINED_COLLECTIONS


def architecture(sample: str, tags: Iterable[str] = ()) -> str:
    """The architecture of the sample ``collection/model``; see the rule above.

    Args:
        sample: the folder below ``samples/``.
        tags: those of the model's card in ``graph_net.json``.
    """
    collection, _, model = sample.partition("/")
    if collection == _TRANSFORMERS:
        for tag in tags:
            if found := _KEYS.get(tag.lower().replace("_", "-")):
                return found
        name = model.lower().replace("_", "-").replace("/", "-")
        inside = [key for key in _KEYS if re.search(rf"(^|[-.]){re.escape(key)}", name)]
        inside = inside or [key for key in _KEYS if len(key) > 3 and key in name]  # noqa: PLR2004
        if inside:
            return _KEYS[max(inside, key=lambda key: (len(key), key))]
    return _stem(model.rpartition("/")[2])


def _stem(model: str) -> str:
    name = _USE.sub("", model.split(".", maxsplit=1)[0].lower().replace("+", ""))
    name = re.split(r"[-_]", name)[0] or name
    previous = ""
    while name != previous and not re.fullmatch(r"\d*[a-z]?", _SIZE.sub("", name)):
        previous, name = name, _SIZE.sub("", name)
    return name
