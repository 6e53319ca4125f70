/*
 * One node that uses more memory than it has, for `cargo xtask paging`: node 0 works, the others wait, and
 * may lend it memory. It prints the seconds that its work took, after it has checked the results.
 *
 *     multiply N            multiplies two matrices of N x N doubles, in tiles of 64 x 64
 *     order MIB HOME        reads a region that is homed on a node, page after page
 *     hops MIB HOME         reads one word of each of its pages, in an order without a pattern
 *     raw MIB DIRECTORY     reads a file from the disk, without the kernel's cache
 *     mapped MIB DIRECTORY  reads a mapped file, so that the kernel brings its pages in
 *     paged MIB DIRECTORY LIMIT_MIB PAGES
 *                           the same, where another pager (`pager.h`) brings in PAGES pages at each fault
 *     paged-multiply N DIRECTORY LIMIT_MIB PAGES
 *                           the multiplication with the matrices under that pager
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <hiroba.h>

#include "pager.h"

enum { PAGE_WORDS = 4096 / sizeof(uint64_t), TILE = 64, TILE_WORDS = TILE * TILE };

static void require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "paging: node %d: %s\n", hiroba_node(), what);
        exit(1);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t value(size_t at)
{
    return at * 0x9e3779b97f4a7c15u + 1;
}

/* ---- The multiplication ---------------------------------------------------------------------- */

/* Whole numbers so small that all sums are exact. */
static double element(int factor, size_t row, size_t column)
{
    return (double)(1 + (row * 7919 + column * 104729 + (size_t)factor) % 1021);
}

/* A matrix is stored tile by tile, each tile row by row. */
static double *tile_of(double *matrix, size_t edge, size_t row, size_t column)
{
    return matrix + (row * edge + column) * TILE_WORDS;
}

static void multiply_tile(double *restrict c, const double *restrict a, const double *restrict b)
{
    for (size_t i = 0; i < TILE; i++)
        for (size_t k = 0; k < TILE; k += 4) {
            const double *x = a + i * TILE + k, *y = b + k * TILE;
            for (size_t j = 0; j < TILE; j++)
                c[i * TILE + j] += x[0] * y[j] + x[1] * y[TILE + j] + x[2] * y[2 * TILE + j] + x[3] * y[3 * TILE + j];
        }
}

/* Multiplies a matrix by a vector. */
static void apply(double *matrix, size_t n, const double *vector, double *result)
{
    memset(result, 0, n * sizeof *result);
    for (size_t i = 0; i < n / TILE; i++)
        for (size_t j = 0; j < n / TILE; j++) {
            const double *tile = tile_of(matrix, n / TILE, i, j);
            for (size_t at = 0; at < TILE_WORDS; at++)
                result[i * TILE + at / TILE] += tile[at] * vector[j * TILE + at % TILE];
        }
}

/* The right factor is transposed tile by tile, so that a column of its tiles is contiguous. */
static double multiply(size_t n, double *left, double *right, double *product)
{
    size_t edge = n / TILE;
    for (size_t i = 0; i < edge; i++)
        for (size_t j = 0; j < edge; j++)
            for (size_t at = 0; at < TILE_WORDS; at++) {
                size_t row = i * TILE + at / TILE, column = j * TILE + at % TILE;
                tile_of(left, edge, i, j)[at] = element(0, row, column);
                tile_of(right, edge, j, i)[at] = element(1, row, column);
            }
    double began = seconds();
    for (size_t i = 0; i < edge; i++)
        for (size_t j = 0; j < edge; j++)
            for (size_t k = 0; k < edge; k++)
                multiply_tile(tile_of(product, edge, i, j), tile_of(left, edge, i, k), tile_of(right, edge, j, k));
    double took = seconds() - began;

    /* product x = left (right x), for a vector x; every sum is a whole number below 2^53. */
    double *vectors = calloc(4 * n, sizeof *vectors);
    require(vectors != NULL, "no private memory");
    double *x = vectors, *image = x + n, *is = image + n, *should = is + n;
    for (size_t at = 0; at < n; at++)
        x[at] = (double)(1 + at * 31 % 13);
    for (size_t row = 0; row < n; row++)
        for (size_t column = 0; column < n; column++)
            image[row] += element(1, row, column) * x[column];
    apply(left, n, image, should);
    apply(product, n, x, is);
    require(memcmp(is, should, n * sizeof *is) == 0, "the product is wrong");
    free(vectors);
    return took;
}

static double multiply_shared(size_t n)
{
    double *matrices[3];
    for (int which = 0; which < 3; which++)
        require((matrices[which] = hiroba_alloc_at(n * n * sizeof(double), 0)) != NULL, "no memory");
    return hiroba_node() == 0 ? multiply(n, matrices[0], matrices[1], matrices[2]) : 0.0;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static void fill(uint64_t *region, size_t words)
{
    for (size_t at = 0; at < words; at++)
        region[at] = value(at);
}

static uint64_t sum_of(const uint64_t *region, size_t words)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < words; at++)
        sum += region[at];
    return sum;
}

static uint64_t expected_sum(size_t words)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < words; at++)
        sum += value(at);
    return sum;
}

static double read_region(size_t mib, int home, int hops)
{
    size_t words = (mib << 20) / sizeof(uint64_t), pages = words / PAGE_WORDS;
    uint64_t *region = hiroba_alloc_at(words * sizeof *region, home);
    require(region != NULL, "no memory");
    if (hiroba_node() == home)
        fill(region, words);
    hiroba_barrier();
    if (hiroba_node() != 0)
        return 0.0;
    uint64_t expected = expected_sum(words);
    double began = seconds();
    if (hops) {
        /* Each page of a power of two of them once: the linear factor is odd, the square one even. */
        for (size_t step = 0; step < pages; step++) {
            size_t at = (2206 * step * step + 7919 * step) % pages * PAGE_WORDS + step % PAGE_WORDS;
            require(region[at] == value(at), "a word is wrong");
        }
    } else {
        require(sum_of(region, words) == expected, "a word is wrong");
    }
    return seconds() - began;
}

/* ---- The same without Hiroba ----------------------------------------------------------------- */

static int open_file(const char *directory, size_t bytes)
{
    int file = open(directory, O_TMPFILE | O_RDWR, 0600);
    require(file >= 0, "no file can be made in the directory");
    require(ftruncate(file, (off_t)bytes) == 0, "the file cannot be made so long");
    return file;
}

static double read_raw(size_t mib, const char *directory)
{
    enum { PIECE = 1 << 20 };
    int file = open_file(directory, mib << 20);
    uint64_t *buffer = aligned_alloc(4096, PIECE);
    require(buffer != NULL, "no private memory");
    fill(buffer, PIECE / sizeof *buffer);
    require(fcntl(file, F_SETFL, O_DIRECT) == 0, "the file system has no direct access");
    for (size_t piece = 0; piece < mib; piece++)
        require(pwrite(file, buffer, PIECE, (off_t)(piece * PIECE)) == PIECE, "a write failed");
    double began = seconds();
    for (size_t piece = 0; piece < mib; piece++)
        require(pread(file, buffer, PIECE, (off_t)(piece * PIECE)) == PIECE && buffer[5] == value(5), "a read failed");
    return seconds() - began;
}

/* Makes a file of that many bytes, which are on the disk alone. */
static int filled_file(const char *directory, size_t bytes)
{
    int file = open_file(directory, bytes);
    uint64_t *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(region != MAP_FAILED, "the file cannot be mapped");
    fill(region, bytes / sizeof *region);
    require(munmap(region, bytes) == 0 && fsync(file) == 0, "the file cannot be written");
    require(posix_fadvise(file, 0, (off_t)bytes, POSIX_FADV_DONTNEED) == 0, "the kernel keeps the file");
    return file;
}

static double read_file(const uint64_t *region, size_t bytes)
{
    uint64_t expected = expected_sum(bytes / sizeof *region);
    double began = seconds();
    require(sum_of(region, bytes / sizeof *region) == expected, "a word is wrong");
    return seconds() - began;
}

static double read_mapped(size_t bytes, const char *directory)
{
    int file = filled_file(directory, bytes);
    uint64_t *region = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    require(region != MAP_FAILED, "the file cannot be mapped");
    return read_file(region, bytes);
}

static double read_paged(size_t bytes, const char *directory, size_t limit, size_t pages)
{
    return read_file(pager_open(filled_file(directory, bytes), bytes, limit, pages * 4096), bytes);
}

static double multiply_paged(size_t n, const char *directory, size_t limit, size_t pages)
{
    size_t words = n * n, bytes = 3 * words * sizeof(double);
    double *matrices = pager_open(open_file(directory, bytes), bytes, limit, pages * 4096);
    return multiply(n, matrices, matrices + words, matrices + 2 * words);
}

int main(int argc, char **argv)
{
    require(hiroba_init(&argc, &argv) == 0, "no job");
    require(argc >= 3, "expected: a kind and a size");
    size_t size = (size_t)atol(argv[2]), limit = argc > 4 ? (size_t)atol(argv[4]) << 20 : 0;
    size_t pages = argc > 5 ? (size_t)atol(argv[5]) : 1;
    const char *kind = argv[1], *other = argc > 3 ? argv[3] : "0";
    int is_first = hiroba_node() == 0, is_kind = 1;
    double took = 0.0;
    if (strcmp(kind, "multiply") == 0)
        took = multiply_shared(size);
    else if (strcmp(kind, "order") == 0 || strcmp(kind, "hops") == 0)
        took = read_region(size, atoi(other), kind[0] == 'h');
    else if (is_first && strcmp(kind, "raw") == 0)
        took = read_raw(size, other);
    else if (is_first && strcmp(kind, "mapped") == 0)
        took = read_mapped(size << 20, other);
    else if (is_first && strcmp(kind, "paged") == 0)
        took = read_paged(size << 20, other, limit, pages);
    else if (is_first && strcmp(kind, "paged-multiply") == 0)
        took = multiply_paged(size, other, limit, pages);
    else
        is_kind = !is_first;
    require(is_kind, "expected: multiply, order, hops, raw, mapped, paged or paged-multiply");
    hiroba_barrier();
    if (is_first)
        printf("seconds %.6f\n", took);
    hiroba_finalize();
    return 0;
}
