/* Conjugate gradients on a sparse symmetric matrix whose entries lie at random places: each step gathers
 * from all of a vector. Usage: cg [ORDER [STEPS]]. The output is rounded so far that the order of sums
 * does not show. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PER_ROW = 12 };

static int order;
static int *columns;
static double *values, *x, *r, *p, *q;

static uint32_t hash(uint32_t word) {
    word = (word ^ word >> 16) * 0x7feb352du;
    word = (word ^ word >> 15) * 0x846ca68bu;
    return word ^ word >> 16;
}

static void make(void) {
    columns = malloc(sizeof *columns * (size_t)order * PER_ROW);
    values = malloc(sizeof *values * (size_t)order * PER_ROW);
    double **vectors[] = {&x, &r, &p, &q};
    for (int vector = 0; vector < 4; vector++)
        *vectors[vector] = malloc(sizeof(double) * (size_t)order);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < order; row++) {
        for (int entry = 0; entry < PER_ROW; entry++) {
            /* The same distance up and down, so that the matrix is symmetric. */
            int distance = 1 + (int)(hash((uint32_t)(entry / 2)) % (uint32_t)(order / 2 - 1));
            int column = entry % 2 ? row + distance : row - distance;
            columns[(size_t)row * PER_ROW + entry] = (column + order) % order;
            values[(size_t)row * PER_ROW + entry] = -1.0 / (1 + entry / 2);
        }
        x[row] = 0;
        r[row] = p[row] = 1 + (double)(hash((uint32_t)row) % 1000) / 1000;
    }
}

int main(int argc, char **argv) {
    order = argc > 1 ? atoi(argv[1]) : 14000;
    int steps = argc > 2 ? atoi(argv[2]) : 30;
    make();
    double rho = 0, first, pq, next;
#pragma omp parallel for reduction(+ : rho)
    for (int row = 0; row < order; row++)
        rho += r[row] * r[row];
    first = rho;
#pragma omp parallel
    for (int step = 0; step < steps; step++) {
#pragma omp single
        pq = next = 0;
#pragma omp for reduction(+ : pq)
        for (int row = 0; row < order; row++) {
            double sum = 6 * p[row];
            for (int entry = 0; entry < PER_ROW; entry++)
                sum += values[(size_t)row * PER_ROW + entry] * p[columns[(size_t)row * PER_ROW + entry]];
            q[row] = sum;
            pq += p[row] * sum;
        }
        double alpha = rho / pq;
#pragma omp for reduction(+ : next)
        for (int row = 0; row < order; row++) {
            x[row] += alpha * p[row];
            r[row] -= alpha * q[row];
            next += r[row] * r[row];
        }
        double beta = next / rho;
#pragma omp for
        for (int row = 0; row < order; row++)
            p[row] = r[row] + beta * p[row];
#pragma omp single
        rho = next;
    }
    double sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int row = 0; row < order; row++)
        sum += x[row];
    printf("order %d steps %d\nresidual 1e%d\nsum %.6e\n", order, steps, (int)floor(log10(sqrt(rho / first)) + 0.5), sum);
    return 0;
}
