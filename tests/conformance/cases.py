"""At which strengths every defence is tried by the suites. A new one needs a row here."""

from __future__ import annotations

from fedseal.testing import DefenceCase

CASES = (
    DefenceCase(
        "adadefense",
        zero="adadefense:variant=none",
        strong=("adadefense", "adadefense:variant=yogi,eps_at=inside", "adadefense:dtype=bfloat16,moments=shared"),
        stateful=("adadefense", "adadefense:variant=yogi,eps_at=inside", "adadefense:dtype=bfloat16,moments=shared"),
    ),
    DefenceCase(
        "adgp",
        zero="adgp:k1=0,k=1",
        strong=("adgp", "adgp:feedback=false"),
        exact=("adgp",),
        stateful=("adgp", "adgp:feedback=false"),
    ),
    DefenceCase("ats", zero="ats:policy=none", strong=("ats",), random=True),
    DefenceCase("blur", zero="blur:sigma=0", strong=("blur",)),
    DefenceCase(
        "censor",
        zero="censor:trials=0",
        strong=("censor:trials=3", "censor:trials=3,variant=released"),
        random=True,
        exact=("censor:trials=1,variant=released",),
    ),
    DefenceCase(
        "dgc",
        zero="dgc:ratio=0,clip=inf",
        strong=("dgc:ratio=0.9", "dgc:ratio=0.9,dense=false"),
        stateful=("dgc:ratio=0.9", "dgc:ratio=0.9,dense=false"),
    ),
    DefenceCase(
        "dgp",
        zero="dgp:k1=0,k2=0",
        strong=("dgp", "dgp:feedback=bottom,mask=gradient", "dgp:k1=0.2,k2=0.6,feedback=none,rounding=nearest"),
        exact=("dgp", "dgp:k1=0.03,k2=0.45"),
        stateful=("dgp", "dgp:feedback=bottom,mask=gradient", "dgp:k1=0.2,k2=0.6,feedback=none,rounding=nearest"),
    ),
    DefenceCase(
        "dp-adaptive",
        zero="dp-adaptive:sigma=0,clip=inf",
        strong=("dp-adaptive",),
        random=True,
        stateful=("dp-adaptive",),
    ),
    DefenceCase("dp-sgd", zero="dp-sgd:sigma=0,clip=inf", strong=("dp-sgd",), random=True, stateful=("dp-sgd",)),
    DefenceCase("fed-cdp", zero="fed-cdp:sigma=0,clip=inf", strong=("fed-cdp",), random=True, stateful=("fed-cdp",)),
    DefenceCase("fedkl", zero="fedkl:key=0", strong=("fedkl:key=16",), random=True, stateful=("fedkl:key=16",)),
    DefenceCase(
        "gaussian",
        zero="gaussian:sigma=0,clip=inf",
        strong=("gaussian", "gaussian:sigma=0.01,clip=inf", "gaussian:sigma=0.1,clip=0.5"),
        random=True,
        exact=("gaussian:sigma=0,clip=0.01", "gaussian:sigma=0,clip=100"),
    ),
    DefenceCase(
        "graddefense", zero="graddefense:scale=0", strong=("graddefense",), random=True, stateful=("graddefense",)
    ),
    DefenceCase("instahide", zero="instahide:k=1,flip=false", strong=("instahide:k=2",), random=True),
    DefenceCase(
        "lids",
        zero="lids:samples=1",
        strong=("lids:samples=3,epochs=2", "lids:samples=2,epochs=2,augment=false"),
        random=True,
    ),
    DefenceCase(
        "laplace",
        zero="laplace:scale=0,clip=inf",
        strong=("laplace", "laplace:scale=0.1,clip=0.5"),
        random=True,
        exact=("laplace:scale=0,clip=0.01",),
    ),
    DefenceCase("minmax", zero="minmax:ratio=0", strong=("minmax", "minmax:scope=tensor"), random=True),
    DefenceCase("mixup", zero="mixup:k=1", strong=("mixup:k=2",), random=True),
    DefenceCase(
        "cancelling-noise",
        zero="cancelling-noise:c=0,view=client",
        strong=("cancelling-noise", "cancelling-noise:view=client"),
        random=True,
    ),
    DefenceCase("large-batch", zero="large-batch:size=1", strong=("large-batch:size=5",)),
    DefenceCase("local-steps", zero="local-steps:steps=1", strong=("local-steps:steps=3",)),
    DefenceCase("pretrained", strong=()),  # its strength is a file; its own tests have one
    DefenceCase("secagg", zero="secagg:clients=1", strong=("secagg",)),
    DefenceCase(
        "selective-encryption",
        zero="selective-encryption:ratio=0",
        strong=("selective-encryption", "selective-encryption:per_tensor=true", "selective-encryption:common=true"),
    ),
    DefenceCase(
        "selective",
        zero="selective",
        strong=("selective:encrypt=*", "selective:freeze=*", "selective:prune=*,ratio=0.9"),
    ),
    DefenceCase("noisy layers", strong=("selective:noise=*,sigma=0.01",), random=True),
    DefenceCase("none", zero="none", strong=(), exact=("none",)),
    DefenceCase(
        "optimal-noise",
        zero="optimal-noise:sigma=0,clip=inf",
        strong=("optimal-noise:probes=4", "optimal-noise:sigma=0.1,probes=2,even=0.5"),
        random=True,
        exact=("optimal-noise:sigma=0,clip=0.01",),
    ),
    DefenceCase("outpost", zero="outpost:prune=0,noise=0", strong=("outpost:beta=0",), random=True),
    DefenceCase("pixelate", zero="pixelate:block=1", strong=("pixelate",)),
    DefenceCase("precode", zero="precode:k=0", strong=("precode:k=8",), random=True),
    DefenceCase(
        "quantise",
        zero="quantise:bits=32",
        strong=("quantise", "quantise:bits=1", "quantise:bits=4,feedback=true"),
        random=True,
        fixed=("quantise:bits=1",),
        rounded=("quantise:bits=1",),
        stateful=("quantise:bits=4,feedback=true",),
    ),
    DefenceCase(
        "refiner",
        zero="refiner:alpha=0,beta=0",
        strong=("refiner", "refiner:preset=fast", "refiner:preset=paper,scope=sample"),
        random=True,
        stateful=("refiner:preset=fast",),
    ),
    DefenceCase("soteria", zero="soteria:ratio=0", strong=("soteria",), random=True),
    DefenceCase(
        "svdefense",
        zero="svdefense:energy=1",
        strong=("svdefense:energy=0.5", "svdefense:energy=0.7,stretch=0,power=0"),
        exact=("svdefense:energy=0.5",),
    ),
    DefenceCase(
        "topk",
        zero="topk:ratio=0",
        strong=("topk", "topk:ratio=0.5", "topk:ratio=0.9,feedback=true"),
        exact=("topk:ratio=0.5", "topk:ratio=0.9"),
        stateful=("topk:ratio=0.9,feedback=true",),
    ),
    DefenceCase(
        "pipelines",
        zero=("topk:ratio=0,feedback=true", "topk:ratio=0+topk:ratio=0"),
        strong=("topk:ratio=0.5+topk:ratio=0.9", "local-steps:steps=2+topk:ratio=0.5"),
        stateful=("topk:ratio=0,feedback=true",),
    ),
    DefenceCase(
        "noisy pipelines",
        strong=("gaussian:sigma=0.01+topk:ratio=0.5",),
        random=True,
        exact=("gaussian:sigma=0,clip=0.01+topk:ratio=0.5",),
    ),
)
