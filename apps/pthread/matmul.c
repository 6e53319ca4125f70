/* Blocked matrix product with pthreads: each thread takes rows of blocks from a counter under a mutex.
 * Usage: matmul [-n ORDER] [-t THREADS]. Nothing is fitted to pages or nodes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 64 };

static int order = 512, threads = 2;
static double *left, *right, *product;
static int next_row;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void multiply_rows(int first)
{
    for (int k = 0; k < order; k += BLOCK)
        for (int i = first; i < first + BLOCK; i++)
            for (int inner = k; inner < k + BLOCK; inner++) {
                double factor = left[(size_t)i * order + inner];
                for (int j = 0; j < order; j++)
                    product[(size_t)i * order + j] += factor * right[(size_t)inner * order + j];
            }
}

static void *work(void *argument)
{
    (void)argument;
    long done = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        int first = next_row;
        next_row += BLOCK;
        pthread_mutex_unlock(&lock);
        if (first >= order)
            return (void *)done;
        multiply_rows(first);
        done++;
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2)
        *(argv[i][1] == 'n' ? &order : &threads) = atoi(argv[i + 1]);
    order = (order + BLOCK - 1) / BLOCK * BLOCK;
    size_t cells = (size_t)order * order;
    left = malloc(cells * sizeof *left);
    right = malloc(cells * sizeof *right);
    product = calloc(cells, sizeof *product);
    pthread_t *all = malloc(threads * sizeof *all);
    if (!left || !right || !product || !all)
        return 1;
    for (size_t i = 0; i < cells; i++) {
        left[i] = (double)(i % 17) - 8;
        right[i] = (double)(i % 13) - 6;
    }
    long blocks = 0;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, work, NULL) != 0)
            return 1;
    for (int i = 0; i < threads; i++) {
        void *done;
        pthread_join(all[i], &done);
        blocks += (long)done;
    }
    double sum = 0;
    for (size_t i = 0; i < cells; i++)
        sum += product[i] * (double)(i % 7);
    printf("order %d, %ld blocks of rows, checksum %.1f\n", order, blocks, sum);
    return 0;
}
