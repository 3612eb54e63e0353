"""`text:notes`: short notes of a ward that nobody lives in, made here and free like the rest of fedseal.

Every note is put together of a person, an observation and what is to be done, so that no two are alike and words repeat
as they do in real notes. Urgent and routine ones are told apart by what was observed.
"""

from __future__ import annotations

import random

from fedseal.data.text.files import Labelled

NOTE_CLASSES = ("routine", "urgent")

_WHO = (
    "the teacher in room four", "a retired sailor", "the young gardener", "mrs holm from the second floor",
    "the baker's daughter", "an old farmer", "the pianist", "mr okafor", "the student with the red coat",
    "our oldest visitor", "the new mother", "a bus driver", "the carpenter", "miss lindqvist", "the violinist",
    "a night guard", "the tall boy from the village", "mr baptiste", "the librarian", "a fisherman from the coast",
)  # fmt: skip
_ROUTINE = (
    "slept well and asks for more tea", "walked to the window and back twice", "finished breakfast and the newspaper",
    "has a mild cough that is getting better", "wants the curtains open in the morning",
    "has healed well after the small operation", "takes the white tablets after lunch as before",
    "was measured again and nothing has changed", "enjoys the soup but leaves the bread",
    "practised with the crutches for ten minutes", "had the bandage changed without pain",
    "reads to the others in the evening", "has a normal pulse and a good appetite", "asked when the family may come",
    "weighs half a kilo more than last week", "no longer needs help on the stairs",
)  # fmt: skip
_URGENT = (
    "cannot feel the left hand since noon", "has a high fever and does not answer clearly",
    "fell beside the bed and complains of the hip", "breathes fast and the lips look blue",
    "has a pulse of one hundred and forty", "bleeds through the fresh bandage",
    "was found confused in the corridor", "has strong pain in the chest and the arm",
    "lost consciousness for a moment at the table", "has not kept any water down since yesterday",
    "has a swollen red leg that is hot to touch", "reacts badly to the new antibiotic",
    "sees double and speaks slowly", "has a sugar value far too low before dinner",
    "coughed blood twice this morning", "is pale and sweats without a fever",
)  # fmt: skip
_THEN = (
    "the doctor on duty was told", "please look again at six", "nothing else was given",
    "the daughter knows about it", "we keep the door open", "see the chart for numbers",
    "to be discussed with the ward round", "a second opinion would help", "noted before the shift ended",
    "the laboratory has the sample", "tomorrow we try without the drip", "the letter is in the drawer",
)  # fmt: skip


def written_notes(split: str = "train") -> Labelled:
    """Return 1,200 notes that clients may hold, or 300 others to test on."""
    every = _notes(0)
    return _labelled(every[:1200] if split == "train" else every[1200:1500])


def public_notes() -> Labelled:
    """Return 800 further notes, which are public: vocabularies are trained on them."""
    return _labelled(_notes(0)[1500:2300])


def _notes(seed: int) -> list[tuple[str, str]]:
    parts = [
        (seen, name) for name, observed in zip(NOTE_CLASSES, (_ROUTINE, _URGENT), strict=True) for seen in observed
    ]
    every = [(f"{who} {seen} , {then} .", name) for who in _WHO for seen, name in parts for then in _THEN]
    random.Random(seed).shuffle(every)
    return every


def _labelled(notes: list[tuple[str, str]]) -> Labelled:
    return Labelled(tuple(text for text, _ in notes), tuple(name for _, name in notes))
