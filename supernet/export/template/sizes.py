"""Properties and sizes of a sample network, which the parts are written against."""

from __future__ import annotations

# -- properties: branches on them are decided when a file is generated -----------------------------

CLASSIFIER = True
TRANSLATOR = True
LANGUAGE_MODEL = True

IMAGES = True
CLASS_TOKEN = True
POOL_CLASS = True
PADDING = True
LEARNED_POSITIONS = True
SINUSOIDAL_POSITIONS = True
MEMORY = True

PRE_NORM = True
GELU = True
ENCODER_SPANS = True
DECODER_SPANS = True
JOINED = True
SHARED_EMBEDDING = True
CUT_SOURCE = True
CUT_TARGET = True
CUT_VOCABULARY = True
FEWER_WORDS = True
OMNI = True
POSITIONS = True

SOFTMAX_ENCODER = SOFTMAX_DECODER = SOFTMAX_CROSS = True
RELATIVE_ENCODER = RELATIVE_DECODER = True
LINEAR_ENCODER = LINEAR_DECODER = LINEAR_CROSS = True
NORM_ENCODER = NORM_DECODER = NORM_CROSS = True
BIGBIRD_ENCODER = BIGBIRD_DECODER = BIGBIRD_CROSS = True
LINFORMER_ENCODER = True

SAFETENSORS = True

HAS_FILE = SENTENCEPIECE = SYMBOLS = TWO_SIDES = WORDS = True

# -- sizes: numbers in a generated file ------------------------------------------------------------

IMAGE_CHANNELS = 3
PATCH_SIZE = 2
NUM_CLASSES = 10
SOURCE_VOCABULARY = 64
TARGET_VOCABULARY = 48
VOCABULARY = 64
NUM_WORDS = 40
ENCODER_WIDTH = 16
DECODER_WIDTH = 8
EMBEDDING_WIDTH = 16
MAX_LENGTH = 32
MEMORY_LENGTH = 8
RELATIVE_POSITIONS = 4
LINFORMER_RANK = 4
BIGBIRD_BLOCK = 4
LAST_OUTPUTS = 2
PARAMETERS = 0
CHECK_FILE = "check.safetensors"
WEIGHTS_FILE = "model.safetensors"
SOURCE_FILE = "source.model"
TARGET_FILE = "target.model"
