"""The answer in one paragraph."""

from __future__ import annotations

from fedseal.advice.outcome import Advice, Candidate


def paragraph(advice: Advice) -> str:
    """Return what to do, with the readings and costs it rests on; or what stands in the way."""
    if advice.caution:
        return f"No defence can be recommended. {advice.caution}"
    if advice.recommended is not None:
        return _recommended(advice, advice.candidate(advice.recommended))
    limits = advice.limits
    tried = sum(one.defence != "none" for one in advice.candidates)
    head = f"No defence among the {tried} looked at {limits.words()}."
    told = [_near(advice.candidate(name)) for name in advice.nearest]
    if not told:
        return f"{head} None of them is shown to be {limits.aim} at any cost."
    safe = any(advice.candidate(name).safe() for name in advice.nearest)
    none_safe = "" if safe else f" None that was attacked is shown to be {limits.aim}, whatever it costs."
    return f"{head}{none_safe} Nearest: {'; '.join(told)}."


def _recommended(advice: Advice, one: Candidate) -> str:
    if one.defence == "none":
        return (
            f"No defence is needed: undefended updates are {advice.limits.aim} by the audit. {readings(one)} "
            "What was not tested may differ."
        )
    return f"Take {one.defence}. {readings(one)} {costs(one)}"


def _near(one: Candidate) -> str:
    standing = "not attacked" if one.attacked is None else one.attacked.standing
    return f"{one.defence} ({standing}): {costs(one)[0].lower()}{costs(one)[1:].rstrip('.')}, {_held(one)}"


def _held(one: Candidate) -> str:
    cheap = one.screened
    if cheap.ideal_db is None or cheap.prior_db is None:
        return "what its update holds cannot be computed"
    return f"its update holds enough for {cheap.ideal_db:.1f} dB where a guess has {cheap.prior_db:.1f}"


def readings(one: Candidate) -> str:
    """Return the four readings in sentences."""
    told = []
    audit = one.attacked
    if audit is not None and audit.found_db is not None:
        guess = "" if audit.guess_db is None else f", a guess {audit.guess_db:.1f}"
        told.append(f"found: {audit.found_db:.1f} dB by {audit.attack} on {audit.batches} batches{guess}")
    if audit is not None and audit.picked is not None:
        told.append(f"singled out: {audit.picked} of {audit.lined_up} among {audit.strangers}")
    elif audit is not None:
        told.append("singled out: not read, too few strangers")
    if audit is not None and audit.labels is not None and audit.label_chance is not None:
        told.append(f"labels: {audit.labels:.0%} read, {audit.label_chance:.0%} guessed")
    cheap = one.screened
    if cheap.ideal_db is not None and cheap.prior_db is not None:
        told.append(f"ideal: {cheap.ideal_db:.1f} dB, the prior alone {cheap.prior_db:.1f}")
    else:
        told.append("ideal: cannot be computed")
    told.append(f"proven: {cheap.proven.rstrip('.') if cheap.proven else 'nothing'}")
    standing = "" if audit is None else f"Its risk is {audit.standing} by the audit ({audit.decided or audit.state}). "
    text = "; ".join(told)
    return f"{standing}{text[:1].upper()}{text[1:]}."


def costs(one: Candidate) -> str:
    """Return accuracy, bytes and time in a sentence."""
    trained = one.trained
    if trained is None or trained.accuracy is None:
        return f"It was not trained, and sends {one.upload:.2f}x the bytes."
    if trained.stopped:
        return f"Its training was {trained.stopped}, and it sends {one.upload:.2f}x the bytes."
    kept = "" if trained.kept is None else f", {trained.kept.mean:.1f} % of the undefended accuracy"
    time = "" if trained.time is None else f" in {trained.time:.2f}x the time of a round"
    chance = "" if trained.learnt else ", no more than chance"
    return f"It reaches {trained.accuracy.words()}{kept}{chance}, and sends {one.upload:.2f}x the bytes{time}."
