"""Untruncated float64 posterior of Bayesian online change-point detection: the oracle of tests and
benchmarks.

Adams & MacKay (2007), equations 2-3 and algorithm 1, in the shifted index (see
`detectors.changepoint.bocpd`), in the steps of the paper: Student-t predictive, growth, change, normalise.
O(T²), without absorbing, capping or rescaling.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.bocpd import BocpdConfig


def run_length_posterior(x: NDArray[np.float64], config: BocpdConfig) -> NDArray[np.float64]:
    """Return P(age of the current run = n | x up to t) as [t, n - 1], float64[T, T], for x float64[T] without
    NaN."""
    steps = len(x)
    posterior = np.zeros((steps, steps))
    mu = np.full(steps, config.mu0, dtype=np.float64)
    beta = np.full(steps, config.beta0, dtype=np.float64)
    log_joint = np.zeros(0)
    for t in range(steps):
        # Entry n of mu, beta holds a run that has seen n samples; n = 0 is the run that starts with x[t].
        log_density = _student_t(x[t], mu[: t + 1], beta[: t + 1], config)
        grown = log_joint + math.log1p(-config.hazard) + log_density[1:]
        # The first sample starts a run for certain.
        born = (math.log(config.hazard) if t else 0.0) + log_density[0]
        log_joint = np.concatenate(([born], grown))
        log_joint -= np.logaddexp.reduce(log_joint)
        posterior[t, : t + 1] = np.exp(log_joint)
        _learn(x[t], mu, beta, t, config)
    return posterior


def _student_t(
    x: float, mu: NDArray[np.float64], beta: NDArray[np.float64], config: BocpdConfig
) -> NDArray[np.float64]:
    n = np.arange(len(mu))
    kappa, alpha = config.kappa0 + n, config.alpha0 + n / 2
    freedom = 2 * alpha
    scale2 = beta * (kappa + 1) / (alpha * kappa)
    norm = np.array([math.lgamma((v + 1) / 2) - math.lgamma(v / 2) for v in freedom])
    z2 = (x - mu) ** 2 / scale2
    density: NDArray[np.float64] = (
        norm - 0.5 * np.log(math.pi * freedom * scale2) - (freedom + 1) / 2 * np.log1p(z2 / freedom)
    )
    return density


def _learn(x: float, mu: NDArray[np.float64], beta: NDArray[np.float64], t: int, config: BocpdConfig) -> None:
    """Move every run on by x in place: the run with n samples becomes the run with n + 1."""
    if t + 1 >= len(mu):
        return
    kappa = config.kappa0 + np.arange(t + 1)
    d = x - mu[: t + 1]
    grown_mu = mu[: t + 1] + d / (kappa + 1)
    grown_beta = beta[: t + 1] + d * d * kappa / (2 * (kappa + 1))
    mu[1 : t + 2], beta[1 : t + 2] = grown_mu, grown_beta
