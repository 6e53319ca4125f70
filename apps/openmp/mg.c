/* Multigrid: V-cycles for Poisson's equation in a periodic box, whose right-hand side is 1 in ten points and
 * -1 in ten others. Usage: mg [T|S|W|A]. Every value is computed by the same operations whichever thread does
 * it, and norms are sums of planes' sums, so the output does not depend on the number of threads. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEVELS = 9, CHARGES = 10, SMOOTHINGS = 2 };

/* Grids of level l have 2^l points in each direction. */
static double *solution[LEVELS], *right[LEVELS], *rest[LEVELS], *spare[LEVELS];
static double planes[1 << (LEVELS - 1)];

static size_t at(int level, int x, int y, int z) {
    int mask = (1 << level) - 1;
    return ((size_t)(z & mask) << (2 * level)) + ((size_t)(y & mask) << level) + (size_t)(x & mask);
}

/* A row of points and the four beside it. */
typedef struct {
    const double *own, *before, *behind, *below, *above;
} Rows;

static Rows rows(const double *grid, int level, int y, int z) {
    return (Rows){grid + at(level, 0, y, z), grid + at(level, 0, y - 1, z), grid + at(level, 0, y + 1, z),
                  grid + at(level, 0, y, z - 1), grid + at(level, 0, y, z + 1)};
}

/* The sum of six neighbours. */
static double around(const Rows *row, int mask, int x) {
    return row->own[(x - 1) & mask] + row->own[(x + 1) & mask] + row->before[x] + row->behind[x] + row->below[x] +
           row->above[x];
}

/* In all threads of a team, as the following ones. The distance of points is 1 on every level, so that
 * right-hand sides grow fourfold from a level to the next coarser one. */
static void smooth(int level) {
    int size = 1 << level;
    for (int turn = 0; turn < 2 * SMOOTHINGS; turn++) {
        double *from = turn % 2 ? spare[level] : solution[level], *to = turn % 2 ? solution[level] : spare[level];
#pragma omp for schedule(static)
        for (int z = 0; z < size; z++)
            for (int y = 0; y < size; y++) {
                Rows row = rows(from, level, y, z);
                const double *given = right[level] + at(level, 0, y, z);
                double *result = to + at(level, 0, y, z);
                for (int x = 0; x < size; x++)
                    result[x] = (row.own[x] + around(&row, size - 1, x) - given[x]) * (1.0 / 7);
            }
    }
}

static void find_rest(int level) {
    int size = 1 << level;
#pragma omp for schedule(static)
    for (int z = 0; z < size; z++)
        for (int y = 0; y < size; y++) {
            Rows row = rows(solution[level], level, y, z);
            const double *given = right[level] + at(level, 0, y, z);
            double *result = rest[level] + at(level, 0, y, z);
            for (int x = 0; x < size; x++)
                result[x] = given[x] - (around(&row, size - 1, x) - 6 * row.own[x]);
        }
}

/* The rest of a level is the right-hand side of the next coarser one, whose solution begins with 0. */
static void restrict_to(int coarse) {
    int fine = coarse + 1, size = 1 << coarse;
#pragma omp for schedule(static)
    for (int z = 0; z < size; z++)
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++) {
                double sum = 0;
                for (int dz = -1; dz <= 1; dz++)
                    for (int dy = -1; dy <= 1; dy++) {
                        const double *row = rest[fine] + at(fine, 0, 2 * y + dy, 2 * z + dz);
                        double of_row = row[2 * x] / 2 + (row[(2 * x - 1) & (2 * size - 1)] + row[2 * x + 1]) / 4;
                        sum += of_row / (4 << (abs(dy) + abs(dz)));
                    }
                right[coarse][at(coarse, x, y, z)] = 4 * sum;
                solution[coarse][at(coarse, x, y, z)] = 0;
            }
}

/* Adds the solution of the next coarser level, interpolated. */
static void correct(int fine) {
    int coarse = fine - 1, size = 1 << fine, mask = (1 << coarse) - 1;
#pragma omp for schedule(static)
    for (int z = 0; z < size; z++)
        for (int y = 0; y < size; y++) {
            double *result = solution[fine] + at(fine, 0, y, z);
            for (int corner = 0; corner < 4; corner++) {
                int dy = y & 1 & corner, dz = z & 1 & corner >> 1;
                const double *row = solution[coarse] + at(coarse, 0, y / 2 + dy, z / 2 + dz);
                for (int x = 0; x <= mask; x++) {
                    result[2 * x] += row[x] / 4;
                    result[2 * x + 1] += (row[x] + row[(x + 1) & mask]) / 8;
                }
            }
        }
}

static void cycle(int level) {
    for (int l = level; l > 1; l--) {
        smooth(l);
        find_rest(l);
        restrict_to(l - 1);
    }
    smooth(1);
    for (int l = 2; l <= level; l++) {
        correct(l);
        smooth(l);
    }
}

/* The root of the mean square of the rest, in every thread. */
static double norm(int level) {
    int size = 1 << level;
    find_rest(level);
#pragma omp for schedule(static)
    for (int z = 0; z < size; z++) {
        planes[z] = 0;
        for (size_t i = at(level, 0, 0, z); i < at(level, 0, 0, z) + ((size_t)1 << (2 * level)); i++)
            planes[z] += rest[level][i] * rest[level][i];
    }
    double sum = 0;
    for (int z = 0; z < size; z++)
        sum += planes[z];
#pragma omp barrier
    return sqrt(sum) / pow(size, 1.5);
}

int main(int argc, char **argv) {
    char class = argc > 1 ? argv[1][0] : 'S';
    int level = class == 'T' ? 4 : class == 'S' ? 5 : class == 'W' ? 7 : class == 'A' ? 8 : 0, cycles = 8;
    if (!level) {
        fprintf(stderr, "usage: mg [T|S|W|A], got '%s'\n", argv[1]);
        return 2;
    }
    for (int l = 1; l <= level; l++) {
        size_t bytes = sizeof(double) << (3 * l);
        double **grids[] = {&solution[l], &right[l], &rest[l], &spare[l]};
        for (int grid = 0; grid < 4; grid++)
            if (!(*grids[grid] = malloc(bytes)))
                return 3;
    }
    int is_right = 1;
#pragma omp parallel
    {
        int size = 1 << level;
#pragma omp for schedule(static)
        for (int z = 0; z < size; z++)
            for (size_t i = at(level, 0, 0, z); i < at(level, 0, 0, z) + ((size_t)1 << (2 * level)); i++)
                solution[level][i] = right[level][i] = 0;
#pragma omp single
        for (uint32_t charge = 0; charge < 2 * CHARGES; charge++)
            right[level][(charge + 1) * 2654435761u % (1u << (3 * level))] += charge % 2 ? -1 : 1;
        double before = norm(level), first = before;
        for (int turn = 1; turn <= cycles; turn++) {
            cycle(level);
            double now = norm(level);
#pragma omp master
            {
                printf("cycle %d rest %.6e\n", turn, now);
                /* A cycle takes away nearly the same share on every grid. */
                is_right &= now < before / 5;
            }
            before = now;
        }
#pragma omp master
        is_right &= before < first * 1e-7;
    }
    printf("%d^3: %s\n", 1 << level, is_right ? "verified" : "wrong");
    return !is_right;
}
