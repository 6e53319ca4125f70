/*
 * cg: the smallest eigenvalue of a sparse matrix by conjugate gradients, a kernel of the NAS Parallel
 * Benchmarks.
 *
 *     hiroba cc -O3 -march=native -o cg cg.c -lm
 *     hiroba run -n 4 ./cg -c A
 *
 * Read `solve` first: it is the parallel program (RNR-94-007, section 2.2.3). Each thread owns some blocks of
 * rows of the matrix. In `multiply` it computes these rows of a product, waits at a barrier and reads the
 * rows of the other threads. Each thread keeps a private copy of every other vector and computes all of it:
 * that takes a hundredth of the time of the product, and a step needs only one barrier.
 *
 * Fitted to pages: the part of a product that one thread writes has pages of its own, as long as the part
 * (`shared_parts`), so another thread fetches it in one message and no page has two writers. The other
 * vectors are private, because computing them again is cheaper than two more barriers in each step.
 *
 * A dot product adds the sums of the blocks in the order of the blocks. It does not depend on the owners of
 * the blocks, so the checksum is the same on any number of nodes and threads.
 */

#include "common.h"
#include "kernels.h"

static const char *class_word = "S";

static const struct option OPTIONS[] = {
    {"-c", "a class", 0, 0, NULL, &class_word},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: cg [-c CLASS] [--sequential]\n"
           "\n"
           "Finds an eigenvalue of a random sparse matrix, and checks it.\n"
           "\n"
           "  -c CLASS      S for 1400 rows, W for 7000, A for 14000 [%s]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the eigenvalue is the official one, 1 it is not, 2 bad arguments.\n",
           class_word);
}

/* The classes, with the official results. */
struct problem {
    size_t rows;
    size_t nonzeros; /* of each of the random vectors that form the matrix */
    double shift, zeta;
};

static const struct problem PROBLEMS[] = {
    {1400, 7, 10.0, 8.5971775078648},
    {7000, 8, 12.0, 10.362595087124},
    {14000, 11, 20.0, 17.130235054029},
};

static const double BOUND = 1e-10; /* relative bound for the error of zeta */
static const double CONDITION = 0.1;

/* Power iterations; steps of conjugate gradients in each; rows of a block; the largest number of nonzeros. */
enum { ITERATIONS = 15, STEPS = 25, BLOCK = 40, LANES = 8, NONZEROS_MAX = 12 };

static const struct problem *problem;

static size_t block_count(void)
{
    return problem->rows / BLOCK; /* every class has a multiple of BLOCK rows */
}

/* ---- The matrix ------------------------------------------------------------------------------ */

/*
 * The matrix is the sum over i of w^i x_i x_i^T, where the x_i are random sparse vectors and w = CONDITION^(1
 * / rows), plus CONDITION - shift on the diagonal.
 */
struct vector {
    size_t nonzeros;
    uint32_t place[NONZEROS_MAX];
    double value[NONZEROS_MAX];
};

/* Draws a vector and sets its element `own` to 1/2. */
static struct vector draw(size_t own, uint64_t *random)
{
    struct vector x = {.nonzeros = 0};
    double range = 1.0;
    size_t at = 0;
    while (range < (double)problem->rows)
        range *= 2.0;
    while (x.nonzeros < problem->nonzeros) {
        double value = next_number(random);
        uint32_t place = (uint32_t)(range * next_number(random));
        for (at = 0; at < x.nonzeros && x.place[at] != place; at++)
            ;
        if (place >= problem->rows || at < x.nonzeros)
            continue; /* there is no such row, or it is drawn already */
        x.place[x.nonzeros] = place;
        x.value[x.nonzeros++] = value;
    }
    for (at = 0; at < x.nonzeros && x.place[at] != own; at++)
        ;
    x.place[at] = (uint32_t)own;
    x.value[at] = 0.5;
    x.nonzeros += at == x.nonzeros;
    return x;
}

/* All vectors, and the vectors that have an element in each row. */
struct generators {
    struct vector *vectors;
    size_t *first; /* index in `reaching` of the first vector of each row; one more at the end */
    uint32_t *reaching;
};

static void forget(struct generators *g)
{
    free(g->vectors);
    free(g->first);
    free(g->reaching);
}

/* Draws all vectors. Each thread draws all of them, because each number depends on the one before. */
static bool generate(struct generators *g)
{
    const size_t rows = problem->rows;
    uint64_t random = 314159265;
    g->vectors = malloc(rows * sizeof *g->vectors);
    g->first = calloc(rows + 2, sizeof *g->first);
    g->reaching = malloc(rows * NONZEROS_MAX * sizeof *g->reaching);
    if (g->vectors == NULL || g->first == NULL || g->reaching == NULL)
        return false;
    (void)next_number(&random); /* the definition skips the first number */
    for (size_t i = 0; i < rows; i++) {
        g->vectors[i] = draw(i, &random);
        for (size_t k = 0; k < g->vectors[i].nonzeros; k++)
            g->first[g->vectors[i].place[k] + 2]++;
    }
    for (size_t row = 2; row < rows + 2; row++)
        g->first[row] += g->first[row - 1];
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < g->vectors[i].nonzeros; k++)
            g->reaching[g->first[g->vectors[i].place[k] + 1]++] = (uint32_t)i;
    return true;
}

/* The rows of the matrix that one thread owns. No other thread reads them. */
struct matrix {
    double *values;
    uint32_t *columns;
    size_t room;   /* capacity in elements */
    size_t *first; /* first element of each row, counted from the thread's first row; one more at the end */
};

/* Adds the contributions of all vectors that have an element in the row to a dense row. */
static void add_row(const struct generators *g, size_t row, double ratio, double *dense)
{
    for (size_t r = g->first[row]; r < g->first[row + 1]; r++) {
        const struct vector *x = &g->vectors[g->reaching[r]];
        size_t at = 0;
        while (x->place[at] != row)
            at++;
        double scale = pow(ratio, (double)g->reaching[r]) * x->value[at];
        for (size_t k = 0; k < x->nonzeros; k++)
            dense[x->place[k]] += scale * x->value[k];
    }
    dense[row] += CONDITION - problem->shift;
}

/* Makes room for a whole row after `elements` elements. */
static bool make_room(struct matrix *m, size_t elements)
{
    if (m->room - elements >= problem->rows)
        return true;
    m->room = 2 * m->room + problem->rows;
    double *values = realloc(m->values, m->room * sizeof *values);
    m->values = values != NULL ? values : m->values;
    uint32_t *columns = realloc(m->columns, m->room * sizeof *columns);
    m->columns = columns != NULL ? columns : m->columns;
    return values != NULL && columns != NULL;
}

/* Builds the rows of one thread. Returns false if there is not enough memory. */
static bool build(struct matrix *m, struct span own)
{
    const size_t rows = problem->rows;
    const double ratio = pow(CONDITION, 1.0 / (double)rows);
    struct generators g = {NULL, NULL, NULL};
    double *dense = calloc(rows, sizeof *dense);
    size_t elements = 0;
    *m = (struct matrix){NULL, NULL, 0, calloc(length_of(own) + 1, sizeof *m->first)};
    bool good = generate(&g) && dense != NULL && m->first != NULL;
    for (size_t row = own.first; good && row < own.end; row++) {
        good = make_room(m, elements);
        add_row(&g, row, ratio, dense);
        m->first[row - own.first] = elements;
        for (size_t column = 0; good && column < rows; column++) {
            if (dense[column] == 0.0)
                continue;
            m->values[elements] = dense[column];
            m->columns[elements++] = (uint32_t)column;
            dense[column] = 0.0;
        }
    }
    if (good)
        m->first[length_of(own)] = elements;
    forget(&g);
    free(dense);
    return good;
}

/* A row of the matrix times a vector, in LANES sums that are then added in pairs. */
static double row_times(const struct matrix *m, size_t row, const double *restrict vector)
{
    const size_t end = m->first[row + 1];
    double sums[LANES] = {0.0};
    size_t k = m->first[row];
    for (; k + LANES <= end; k += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += m->values[k + lane] * vector[m->columns[k + lane]];
    for (size_t lane = 0; k < end; k++, lane++)
        sums[lane] += m->values[k] * vector[m->columns[k]];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* The state that all threads share. */
struct shared {
    struct parts products[2]; /* of the matrix and a vector; alternating; each thread writes its own rows */
    double *x;                /* the eigenvector, for the checks */
};

/* The state of one thread. */
struct own {
    struct span blocks;
    size_t first, rows; /* first row, and how many */
    struct matrix matrix;
    double *p, *x, *z, *r; /* whole vectors */
    size_t turn;           /* which of the products is the latest */
};

static double set_up;
static struct clocks elapsed;
static size_t threads;
static double zeta, residual; /* of the last iteration, as this node has computed them */

/* The sum of one block of the product of two vectors, in LANES sums that are then added in pairs. */
static double block_sum(const double *restrict a, const double *restrict b)
{
    double sums[LANES] = {0.0};
    for (size_t i = 0; i < BLOCK; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += a[i + lane] * b[i + lane];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* The dot product of two whole vectors. */
static double dot(const double *a, const double *b)
{
    double sum = 0.0;
    for (size_t block = 0; block < block_count(); block++)
        sum += block_sum(a + block * BLOCK, b + block * BLOCK);
    return sum;
}

/* Returns the rows of a thread in the latest product. Sets their first index and their number. */
static const double *product_of(const struct shared *s, const struct own *o, size_t thread,
                                size_t *first, size_t *rows)
{
    struct span blocks = share_of(block_count(), thread, thread_count());
    *first = blocks.first * BLOCK;
    *rows = length_of(blocks) * BLOCK;
    return part_of(s->products[o->turn], thread);
}

/* Multiplies the matrix by a whole vector: writes this thread's rows of the product and waits until all
 * threads have written theirs. A thread that has left the barrier may start the next product, but not the
 * one after that, so two products alternate. */
static void multiply(const struct shared *s, struct own *o, const double *vector)
{
    const size_t count = thread_count(), thread = thread_number();
    o->turn = 1 - o->turn;
    double *product = part_of(s->products[o->turn], thread);
    for (size_t row = 0; row < o->rows; row++)
        product[row] = row_times(&o->matrix, row, vector);
    barrier();
    for (size_t i = 1; i < count; i++) /* each thread starts with the next one's rows */
        read_soon(part_of(s->products[o->turn], (thread + i) % count), s->products[o->turn].bytes);
}

/* The dot product of a whole vector and the latest product. */
static double times_product(const struct shared *s, const struct own *o, const double *vector)
{
    double sum = 0.0;
    for (size_t thread = 0; thread < thread_count(); thread++) {
        size_t first, rows;
        const double *product = product_of(s, o, thread, &first, &rows);
        for (size_t row = 0; row < rows; row += BLOCK)
            sum += block_sum(vector + first + row, product + row);
    }
    return sum;
}

/* to = a vector - factor * the latest product. */
static void less_product(const struct shared *s, const struct own *o, double *to,
                         const double *vector, double factor)
{
    for (size_t thread = 0; thread < thread_count(); thread++) {
        size_t first, rows;
        const double *product = product_of(s, o, thread, &first, &rows);
        for (size_t row = 0; row < rows; row++)
            to[first + row] = vector[first + row] - factor * product[row];
    }
}

/* to = a + factor * b */
static void add(double *to, const double *a, double factor, const double *b)
{
    for (size_t i = 0; i < problem->rows; i++)
        to[i] = a[i] + factor * b[i];
}

/* Finds z, an approximation of A^-1 x, by conjugate gradients. Collective. */
static void solve(const struct shared *s, struct own *o)
{
    const size_t bytes = problem->rows * sizeof(double);
    memset(o->z, 0, bytes);
    memcpy(o->r, o->x, bytes);
    memcpy(o->p, o->r, bytes);
    double rho = dot(o->r, o->r);
    for (int step = 0; step < STEPS; step++) {
        multiply(s, o, o->p);
        double alpha = rho / times_product(s, o, o->p), last = rho;
        add(o->z, o->z, alpha, o->p);
        less_product(s, o, o->r, o->r, alpha);
        rho = dot(o->r, o->r);
        add(o->p, o->r, rho / last, o->p);
    }
}

/*
 * One iteration of the inverse power method: z = A^-1 x, zeta = shift + 1 / x.z, x = z / |z|. Sets the
 * residual of z. Collective.
 */
static void iterate(const struct shared *s, struct own *o)
{
    solve(s, o);
    multiply(s, o, o->z);
    less_product(s, o, o->r, o->x, 1.0);
    if (keeps_time()) {
        zeta = problem->shift + 1.0 / dot(o->x, o->z);
        residual = sqrt(dot(o->r, o->r));
    }
    double scale = 1.0 / sqrt(dot(o->z, o->z));
    for (size_t i = 0; i < problem->rows; i++)
        o->x[i] = scale * o->z[i];
}

static double *own_vector(size_t elements)
{
    double *vector = calloc(elements + 1, sizeof *vector);
    if (vector == NULL)
        abort(); /* threads cannot leave a barrier that others wait at */
    return vector;
}

static void begin(struct own *o)
{
    o->blocks = own_share(block_count());
    o->first = o->blocks.first * BLOCK;
    o->rows = length_of(o->blocks) * BLOCK;
    o->turn = 0;
    o->p = own_vector(problem->rows);
    o->x = own_vector(problem->rows);
    o->z = own_vector(problem->rows);
    o->r = own_vector(problem->rows);
    if (!build(&o->matrix, (struct span){o->first, o->first + o->rows}))
        abort();
}

static void start(struct own *o)
{
    for (size_t i = 0; i < problem->rows; i++)
        o->x[i] = 1.0;
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct own own;
    double begun = seconds();
    begin(&own);
    start(&own);
    iterate(s, &own); /* not measured: the first touch of each page belongs to the set-up */
    start(&own);
    barrier();
    struct clocks started = clocks();
    for (int iteration = 0; iteration < ITERATIONS; iteration++)
        iterate(s, &own);
    if (keeps_time()) {
        elapsed = since(started);
        set_up = started.wall - begun;
        threads = thread_count();
    }
    memcpy(s->x + own.first, own.x + own.first, own.rows * sizeof *own.x);
    free(own.p);
    free(own.x);
    free(own.z);
    free(own.r);
    free(own.matrix.values);
    free(own.matrix.columns);
    free(own.matrix.first);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

static uint64_t checksum(const struct shared *s)
{
    uint64_t sum = fingerprint(problem->rows, bits_of(zeta));
    for (size_t i = 0; i < problem->rows; i++)
        sum += fingerprint(i, bits_of(s->x[i]));
    return sum;
}

static bool check(const struct shared *s)
{
    double length2 = 0.0;
    for (size_t i = 0; i < problem->rows; i++)
        length2 += s->x[i] * s->x[i];
    if (!(fabs(length2 - 1.0) <= BOUND))
        return complain("the eigenvector's length is %.13g, not 1", sqrt(length2));
    return fabs(zeta - problem->zeta) <= BOUND * problem->zeta ||
           complain("zeta is %.13f and should be %.13f", zeta, problem->zeta);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s, size_t count)
{
    const size_t blocks_most = (block_count() + count - 1) / count;
    bool good = true;
    for (size_t turn = 0; turn < 2; turn++) {
        s->products[turn] = shared_parts(count, blocks_most * BLOCK * sizeof(double));
        good &= s->products[turn].start != NULL;
    }
    s->x = shared_zeroed(problem->rows * sizeof *s->x);
    good &= s->x != NULL;
    return good || complain("no shared memory for vectors of %zu elements: %s", problem->rows,
                            strerror(errno));
}

static void report(const struct shared *s)
{
    printf("class                    %s\n", class_word);
    printf("rows                     %zu\n", problem->rows);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("zeta                     %.13f\n", zeta);
    printf("residual                 %.3g\n", residual);
    printf("checksum                 %016llx\n", (unsigned long long)checksum(s));
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("steps per second         %.4g\n",
           elapsed.wall > 0.0 ? ITERATIONS * STEPS / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    share(&s, threads_in_all());
    if (!all_agree())
        return 1;
    on_all_threads(work, &s);
    elapsed = most_of(elapsed);
    if (node == 0) {
        report(&s);
        if (check(&s))
            printf("checks                   passed\n");
    }
    return all_agree() ? 0 : 1;
}

static void choose(void)
{
    int class = class_of(class_word);
    if (class < 0)
        return;
    problem = &PROBLEMS[class];
    if ((size_t)nodes > block_count())
        complain("%d nodes are more than the %zu blocks of rows of class %s; use fewer nodes "
                 "(hiroba run -n)", nodes, block_count(), class_word);
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("cg", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        choose();
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
