#!/usr/bin/env python3
"""Writes solar-system.txt from planets.csv and asteroids.csv beside this script.

Asteroids come as heliocentric osculating elements in the J2000 ecliptic; they are turned into
state vectors, rotated into the equatorial frame of the planets (ICRF), and moved from the Sun to
the Solar System's barycentre. See README.md for sources, units and the assumed masses.

Usage: python3 make_solar_system.py > solar-system.txt
"""

import csv
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
AU_KM = 149597870.7
DAY_S = 86400.0
NEWTON_KM3_KG_S2 = 6.67430e-20  # CODATA 2018
OBLIQUITY_RAD = math.radians(84381.448 / 3600.0)  # IAU 1976, the frame of JPL's elements

# Bulk densities that DE423 fitted for its C and S classes (constants MAD1 and MAD2), in kg/km^3.
# The class is not in the table, so the albedo decides: below 0.1 is dark, hence C.
DENSITY_DARK = 1.146260729640006e12
DENSITY_BRIGHT = 2.184138412075159e12
ALBEDO_LIMIT = 0.1


def assumed_gm(diameter_km: float, albedo: float) -> float:
    """Mass parameter in au^3/day^2 of a sphere of the density its albedo suggests."""
    density = DENSITY_DARK if albedo < ALBEDO_LIMIT else DENSITY_BRIGHT
    mass_kg = density * math.pi / 6.0 * diameter_km**3
    return NEWTON_KM3_KG_S2 * mass_kg * DAY_S**2 / AU_KM**3


def eccentric_anomaly(mean_anomaly: float, e: float) -> float:
    """Solves Kepler's equation by Newton's method, all in radians."""
    guess = mean_anomaly + e * math.sin(mean_anomaly)
    for _ in range(50):
        change = (guess - e * math.sin(guess) - mean_anomaly) / (1.0 - e * math.cos(guess))
        guess -= change
        if abs(change) < 1e-15:
            break
    return guess


def heliocentric_state(row: dict[str, str], gm: float) -> list[float]:
    """Equatorial position (au) and velocity (au/day) relative to the Sun."""
    a, e = float(row["a_au"]), float(row["e"])
    i, node, peri, mean = (
        math.radians(float(row[key])) for key in ("i_deg", "node_deg", "peri_deg", "mean_anomaly_deg")
    )
    anomaly = eccentric_anomaly(mean, e)
    root = math.sqrt(1.0 - e * e)
    rate = math.sqrt(gm / a) / (1.0 - e * math.cos(anomaly))
    in_plane = [
        (a * (math.cos(anomaly) - e), a * root * math.sin(anomaly)),
        (-rate * math.sin(anomaly), rate * root * math.cos(anomaly)),
    ]
    cn, sn, cp, sp, ci, si = (f(x) for x in (node, peri, i) for f in (math.cos, math.sin))
    towards_perihelion = (cn * cp - sn * sp * ci, sn * cp + cn * sp * ci, sp * si)
    quarter_turn_on = (-cn * sp - sn * cp * ci, -sn * sp + cn * cp * ci, cp * si)
    cos_tilt, sin_tilt = math.cos(OBLIQUITY_RAD), math.sin(OBLIQUITY_RAD)
    state = []
    for along, across in in_plane:
        x, y, z = (along * p + across * q for p, q in zip(towards_perihelion, quarter_turn_on))
        state += [x, cos_tilt * y - sin_tilt * z, sin_tilt * y + cos_tilt * z]
    return state


def read(name: str) -> list[dict[str, str]]:
    with open(HERE / name, newline="", encoding="ascii") as table:
        return list(csv.DictReader(table))


def bodies() -> tuple[float, list[tuple[str, float, list[float]]]]:
    """The Sun's mass parameter, then (name, mass in Suns, state) of every body."""
    columns = ("x_au", "y_au", "z_au", "vx_au_day", "vy_au_day", "vz_au_day")
    found = []
    for row in read("planets.csv"):
        found.append((row["name"], float(row["gm_au3_day2"]), [float(row[c]) for c in columns]))
    sun_gm, sun = found[0][1], found[0][2]
    for row in read("asteroids.csv"):
        known = row["gm_au3_day2"]
        gm = float(known) if known else assumed_gm(float(row["diameter_km"]), float(row["albedo"]))
        state = [s + r for s, r in zip(sun, heliocentric_state(row, sun_gm))]
        found.append((f"{row['number']}_{row['name'].replace(' ', '_')}", gm, state))
    # The ephemeris' barycentre counts bodies that are not here; re-centre on those that are.
    total = math.fsum(gm for _, gm, _ in found)
    centre = [math.fsum(gm * s[axis] for _, gm, s in found) / total for axis in range(6)]
    return sun_gm, [
        (name, gm / sun_gm, [s - c for s, c in zip(state, centre)]) for name, gm, state in found
    ]


def main() -> None:
    sun_gm, found = bodies()
    print("# Sun, planets, Moon, Pluto and the largest asteroids on 2022-08-09 00:00 TDB (JD 2459800.5).")
    print("# Written by make_solar_system.py; sources in README.md. Frame ICRF, origin the barycentre.")
    print("# Units: astronomical unit, day, mass of the Sun.")
    print(f"gravity {sun_gm!r}")
    print("softening 0")
    print("time-step 0.5")
    print("steps 730")
    print("drift-bound 1e-6")
    print("# name mass x y z vx vy vz")
    for name, mass, state in found:
        print(name, f"{mass:.17g}", *(f"{value:.17g}" for value in state))


if __name__ == "__main__":
    main()
