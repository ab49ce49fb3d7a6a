"""Gray failures: nodes that deviate from their peers a little in many features at once.

With z [f] the robust z-scores of a node's minute against its peers, clipped to ±12, and c and C the centre
and covariance of healthy windows, a node lies outside the envelope when

    (z − c)ᵀ (C + 0.001 · I)⁻¹ (z − c)  >  threshold

c and C are the minimum covariance determinant (Rousseeuw & Van Driessen, 1999), fitted offline by
scikit-learn; the threshold is the 1 − 10⁻⁴ quantile of the distances of held-out healthy windows. Applying
the model needs numpy alone and gives the same result everywhere.
"""

import warnings
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Of held-out healthy windows; of fewer than ten thousand it is the farthest of them.
QUANTILE = 1.0 - 1e-4

# A covariance of f features has f²/2 numbers; from fewer windows it is mostly noise.
MIN_WINDOWS_PER_FEATURE = 20

# Every so many-th window is not fitted: distances of fitted ones are too small to set a threshold by.
_HELD_OUT = 3

# Robust sigmas at which a feature is clipped, chosen so that no outlier dominates the distance.
_LIMIT = 12.0

# Robust sigmas; a feature that varies less is left out. Chosen: far below the unit spread of a z-score.
_LEAST_SPREAD = 1e-3

# Added to each variance, in squared sigmas: without it redundant features have no inverse.
_RIDGE = 1e-3

# A model with larger numbers was not written by ``fit_envelope``; their squares would still be finite.
_LARGEST = 1e12


@dataclass(frozen=True, slots=True)
class Envelope:
    """The healthy region: ``center`` [f] and ``precision`` [f, f] of robust peer z, by ``features``.

    A window with a squared distance above ``threshold`` lies outside.
    """

    features: tuple[str, ...]
    center: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    threshold: float

    def check(self, known: Collection[str]) -> None:
        """Raise ``ValueError`` where the parts do not fit each other or measure no distance.

        ``known`` are the features that there are.
        """
        count = len(self.features)
        if not count or len(set(self.features)) < count or not set(self.features) <= set(known):
            raise ValueError("features must name some of those that are measured, each once")
        if len(self.center) != count or [len(row) for row in self.precision] != [count] * count:
            raise ValueError(
                f"{count} features need {count} numbers in center, and {count} rows of precision"
            )
        precision = np.array(self.precision)
        largest = float(np.abs([*precision.ravel(), *self.center, self.threshold]).max())
        if not largest <= _LARGEST or not self.threshold > 0:
            raise ValueError(f"numbers must be at most {_LARGEST:g}, and the threshold above 0")
        if not np.allclose(precision, precision.T) or float(np.linalg.eigvalsh(precision)[0]) <= 0:
            raise ValueError("precision must be symmetric and positive definite")

    def distances(self, z: Floats) -> Floats:
        """Return the squared distances [n] of ``z`` [n, f]; NaN (not read) counts as being as usual."""
        d = self._deviation(z)
        distance: Floats = np.einsum("nf,fg,ng->n", d, np.array(self.precision), d)
        return distance

    def contributions(self, z: Floats) -> tuple[tuple[str, float], ...]:
        """Return the features of one window ``z`` [f], the one that matters most first.

        With each the share of the squared distance that is gone when the feature is left out.
        """
        d, precision = self._deviation(z[None])[0], np.array(self.precision)
        pull = precision @ d
        # Without feature i the squared distance (under its own covariance) is smaller by (Pd)ᵢ² / Pᵢᵢ.
        drop = pull**2 / np.diag(precision) / max(float(d @ pull), 1e-12)
        order = sorted(range(len(drop)), key=lambda i: (-drop[i], self.features[i]))
        return tuple((self.features[i], float(drop[i])) for i in order)

    def _deviation(self, z: Floats) -> Floats:
        deviation: Floats = np.nan_to_num(np.clip(z, -_LIMIT, _LIMIT) - np.array(self.center), nan=0.0)
        return deviation


def fit_envelope(z: Floats, features: tuple[str, ...]) -> Envelope:
    """Fit healthy windows ``z`` [n, f], in order of time; features that do not vary are left out.

    Every third window is held out for the threshold. Raises ``ValueError`` with fewer than 20 windows a
    feature, and ``ImportError`` without scikit-learn.
    """
    from sklearn.covariance import MinCovDet

    limited = np.clip(np.nan_to_num(z, nan=0.0), -_LIMIT, _LIMIT)
    varying = np.flatnonzero(np.std(limited, axis=0) > _LEAST_SPREAD) if len(z) else np.zeros(0, np.intp)
    if not varying.size or len(z) < MIN_WINDOWS_PER_FEATURE * varying.size:
        raise ValueError(
            f"{len(z)} healthy windows are too few for {varying.size} features that vary: "
            f"it takes {MIN_WINDOWS_PER_FEATURE} for each"
        )
    held_out = np.arange(len(z)) % _HELD_OUT == _HELD_OUT - 1
    with warnings.catch_warnings():
        # Redundant features make the covariance singular; the ridge below repairs that.
        warnings.simplefilter("ignore")
        fitted = MinCovDet(random_state=0).fit(limited[~held_out][:, varying])
    precision = np.linalg.inv(fitted.covariance_ + _RIDGE * np.eye(varying.size))
    region = Envelope(
        tuple(features[i] for i in varying),
        tuple(float(x) for x in fitted.location_),
        tuple(tuple(float(x) for x in row) for row in precision),
        0.0,
    )
    distances = region.distances(limited[held_out][:, varying])
    threshold = float(np.quantile(distances, QUANTILE, method="higher"))
    return Envelope(region.features, region.center, region.precision, threshold)
