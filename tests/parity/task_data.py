"""Data for two tasks with known answers, made from a seed: words as pictures, and sound that a VAD takes for speech."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.signal import lfilter

Vowels = tuple[tuple[int, int, int], ...]
Noise = Callable[[np.random.Generator, int], np.ndarray]
SYLLABLES = "an be con de er for ga he in jo ka low mi no or pre qua re st ter un ver wa ex you za ing tion ble ment"
FONT_SIZES = (14, 18, 24, 32, 44)
LINE_HEIGHT, LINE_WIDTH = 48, 320
"""What the recogniser takes: a line of text, 48 high, scaled with its width and padded to the right."""

RATE = 16_000
"""Samples a second."""
WINDOW, CONTEXT = 512, 64
"""Samples of one decision, and those of the window before it that the model sees again."""
MEN = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410), (660, 1720, 2410))
WOMEN = ((850, 1220, 2810), (310, 2790, 3310), (370, 950, 2670), (610, 2330, 2990), (590, 920, 2710), (860, 2050, 2850))
"""First three formants of six vowels in Hz (Peterson and Barney, 1952)."""
PITCH = {MEN: (90, 160), WOMEN: (160, 290)}
"""Range of the voice's fundamental in Hz."""
BLOCK = 160
"""Samples between two settings of the formants: 10 ms."""


def words(count: int, seed: int) -> list[str]:
    """Made-up words in Latin letters, some with a capital letter or a number."""
    generator = np.random.default_rng(seed)
    return [_word(generator) for _ in range(count)]


def line_image(word: str, seed: int) -> np.ndarray:
    """`word`, dark on white in one of FONT_SIZES: float32 [1, 3, 48, 320] in -1 to 1."""
    generator = np.random.default_rng(seed)
    font = ImageFont.load_default(int(generator.choice(FONT_SIZES)))
    left, top, right, bottom = font.getbbox(word)
    image = Image.new("RGB", (int(right - left) + 12, int(bottom - top) + 12), "white")
    ink = tuple(int(value) for value in generator.integers(0, 90, 3))
    ImageDraw.Draw(image).text((6 - left, 6 - top), word, font=font, fill=ink)
    width = min(LINE_WIDTH, max(1, round(image.width * LINE_HEIGHT / image.height)))
    scaled = np.asarray(image.resize((width, LINE_HEIGHT), Image.Resampling.BILINEAR), np.float32)
    line = np.zeros((1, 3, LINE_HEIGHT, LINE_WIDTH), np.float32)
    line[0, :, :, :width] = scaled.transpose(2, 0, 1) / 127.5 - 1
    return line


def decode(scores: np.ndarray, characters: list[str]) -> str:
    """Greedy CTC (Graves et al., 2006): scores [steps, characters]; the first character is the blank."""
    best = scores.argmax(-1)
    kept = [i for step, i in enumerate(best) if i and (step == 0 or best[step - 1] != i)]
    return "".join(characters[i] for i in kept).strip()


def sound(seconds: int, seed: int, vowels: Vowels = MEN, noise: Noise | None = None) -> np.ndarray:
    """Phrases of vowels and hisses with pauses between them, under some noise: float32 [samples] at RATE.

    vowels: MEN or WOMEN, which also sets the pitch. noise: white unless given.
    """
    generator = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < seconds * RATE:
        pitch, level = generator.uniform(*PITCH[vowels]), generator.uniform(0.1, 0.5)
        parts += [level * _syllable(generator, pitch, vowels) for _ in range(generator.integers(4, 12))]
        parts.append(np.zeros(int(generator.uniform(0.6, 2) * RATE)))
    whole = np.concatenate(parts)[: seconds * RATE]
    around = (noise or white)(generator, len(whole))
    return (whole + generator.uniform(0.0005, 0.01) * around).astype(np.float32)


def white(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.standard_normal(count)


def pink(generator: np.random.Generator, count: int) -> np.ndarray:
    """Power falls with 1 / frequency, as in rooms and streets."""
    spectrum = np.fft.rfft(generator.standard_normal(count))
    shaped = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1)), count)
    return shaped / shaped.std()


def hum(generator: np.random.Generator, count: int) -> np.ndarray:
    """Mains and its harmonics, with a little noise."""
    time, base = np.arange(count) / RATE, generator.choice([50, 60])
    tones = sum(np.sin(2 * np.pi * base * n * time + generator.uniform(0, 6)) / n for n in range(1, 12))
    return tones + 0.3 * generator.standard_normal(count)


def chords(generator: np.random.Generator, count: int) -> np.ndarray:
    """Music of a kind: three tones at a time, struck twice a second."""
    time, parts = np.arange(RATE // 2) / RATE, []
    for _ in range(0, count, RATE // 2):
        notes = 220 * 2 ** (generator.integers(0, 24, 3) / 12)
        parts.append(sum(np.sin(2 * np.pi * note * time) for note in notes) * np.exp(-4 * time))
    return 3 * np.concatenate(parts)[:count]


def windows(samples: np.ndarray) -> list[np.ndarray]:
    """Float32 [1, CONTEXT + WINDOW] each: a window with the end of the one before it."""
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    return [padded[None, i : i + CONTEXT + WINDOW] for i in range(0, len(samples) - WINDOW + 1, WINDOW)]


def _word(generator: np.random.Generator) -> str:
    word = "".join(generator.choice(SYLLABLES.split(), generator.integers(2, 5)))
    kind = generator.integers(0, 5)
    return word.capitalize() if kind == 3 else f"{word}{generator.integers(10, 9999)}" if kind == 4 else word


def _syllable(generator: np.random.Generator, pitch: float, vowels: Vowels) -> np.ndarray:
    """A hiss, then a glide from one vowel to another: pulses of the voice through three resonators (Klatt, 1980)."""
    count = int(generator.uniform(0.12, 0.28) * RATE)
    time = np.arange(count) / RATE
    wander = (
        0.08 * np.sin(2 * np.pi * generator.uniform(2, 5) * time) + generator.uniform(-0.15, 0.15) * time / time[-1]
    )
    pulses = np.diff(np.floor(np.cumsum(pitch * (1 + wander)) / RATE), prepend=0)
    voice = lfilter([1], [1, -0.95], pulses) + 0.01 * generator.standard_normal(count)
    start, end = (vowels[i] for i in generator.choice(len(vowels), 2))
    states = [np.zeros(2) for _ in start]
    vowel = np.zeros(count)
    for at in range(0, count, BLOCK):
        block, share = voice[at : at + BLOCK], at / count
        for index, (low, high) in enumerate(zip(start, end, strict=True)):
            radius = np.exp(-np.pi * (60 + 40 * index) / RATE)
            angle = 2 * np.pi * ((1 - share) * low + share * high) / RATE
            filtered = [1, -2 * radius * np.cos(angle), radius**2]
            block, states[index] = lfilter([sum(filtered)], filtered, block, zi=states[index])
        vowel[at : at + BLOCK] = block
    edges = np.minimum(1, np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.03 * RATE))
    hiss = lfilter([1, -0.9], [1], 0.05 * generator.standard_normal(int(generator.uniform(0.03, 0.09) * RATE)))
    return np.concatenate([hiss, vowel / np.abs(vowel).max() * edges])
