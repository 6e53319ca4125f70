/* Corners of OpenMP where the interfaces of GNU's and LLVM's libraries differ most: prints what it has found,
 * which depends neither on the number of threads nor on where they run.
 *
 * Usage: openmp_corners PART...   with the parts below. */
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int ok, const char *what) {
    if (!ok) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

/* Regions with more arguments than a processor has registers for. */
static void arguments(void) {
    int a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8, sum = 0;
    long i = 9, j = 10, k = 11, l = 12;
    double m = 13, n = 14, o = 15, p = 16;
    char q = 17, r = 18, s = 19, t = 20;
    int v[14] = {0}, w = 1, x = 1, y = 1, z = 1, aa = 1, bb = 1, cc = 1, dd = 1, ee = 1, ff = 1, gg = 1, hh = 1;
#pragma omp parallel reduction(+ : sum) firstprivate(a, i, m, q)
    {
        sum += a + b + c + d + e + f + g + h + (int)(i + j + k + l) + (int)(m + n + o + p) + q + r + s + t;
        sum += v[3] + w + x + y + z + aa + bb + cc + dd + ee + ff + gg + hh;
        check(sum == 222, "the arguments of a region");
    }
#pragma omp parallel num_threads(2)
    {
#pragma omp critical
        v[omp_get_thread_num()] = 1 + a + (int)i;
    }
    check(v[0] == 11 && sum == 222 * omp_get_max_threads(), "their sum");
    printf("arguments %d\n", v[0]);
}

/* Loops of every type, direction and schedule, near the ends of the types' values. */
#define LOOP(type, format, from, condition, step, clause)                                                             \
    {                                                                                                                  \
        long long count = 0, sum = 0;                                                                                  \
        type last = 0;                                                                                                 \
        _Pragma("omp parallel") _Pragma(clause) for (type i = from; i condition; i += step) {                          \
            count++;                                                                                                   \
            sum += (long long)(i % 1000);                                                                              \
            last = i;                                                                                                  \
        }                                                                                                              \
        printf("%s: %lld %lld " format "\n", clause, count, sum, last);                                                \
    }
#define LOOPS(clause)                                                                                                  \
    LOOP(int, "%d", INT_MIN, < INT_MIN + 90, 7, clause)                                                                \
    LOOP(int, "%d", INT_MAX - 1, > INT_MAX - 50, -3, clause)                                                           \
    LOOP(unsigned, "%u", UINT_MAX - 100100, < UINT_MAX - 100009, 9, clause)                                                    \
    LOOP(long, "%ld", LONG_MAX - 90500, < LONG_MAX - 90300, 60, clause)                                                    \
    LOOP(unsigned long, "%lu", ULONG_MAX - 91000, < ULONG_MAX - 90400, 100, clause)                                       \
    LOOP(int, "%d", 5, < 6, 1, clause)

static void bounds(void) {
    LOOPS("omp for lastprivate(last) reduction(+ : count, sum)")
    LOOPS("omp for lastprivate(last) reduction(+ : count, sum) schedule(static, 3)")
    LOOPS("omp for lastprivate(last) reduction(+ : count, sum) schedule(monotonic : dynamic, 2)")
    LOOPS("omp for lastprivate(last) reduction(+ : count, sum) schedule(guided)")
    LOOPS("omp for lastprivate(last) reduction(+ : count, sum) schedule(runtime)")
    LOOPS("omp for lastprivate(last) reduction(+ : count, sum) schedule(monotonic : dynamic)")
    LOOPS("omp for simd lastprivate(last) reduction(+ : count, sum) schedule(static, 4)")
    int none = 0, passed = 0;
#pragma omp parallel
    {
#pragma omp for schedule(dynamic) nowait
        for (int i = 3; i < none; i++)
            passed = 1;
#pragma omp for
        for (int i = 3; i < none; i++)
            passed = 1;
    }
    check(!passed, "loops without an iteration");
}

/* Ordered loops of every schedule, and nests whose iterations wait for each other. */
static void orders(void) {
    enum { SIDE = 15 };
    static int grid[SIDE][SIDE];
    int next = 0;
#pragma omp parallel
    {
#pragma omp for ordered schedule(static)
        for (int i = 0; i < 20; i++)
#pragma omp ordered
            check(i == next++, "ordered, static");
#pragma omp for ordered schedule(guided, 2)
        for (unsigned long i = 20; i < 40; i++)
#pragma omp ordered
            check((int)i == next++, "ordered, guided");
#pragma omp for ordered
        for (int i = 79; i > 39; i -= 2)
#pragma omp ordered
            check(79 - i == 2 * (next++ - 40), "ordered, downwards");
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            grid[i][j] = 1;
#pragma omp parallel for ordered(2) collapse(2) schedule(dynamic)
    for (int i = 1; i < SIDE; i++)
        for (int j = 1; j < SIDE; j++) {
#pragma omp ordered depend(sink : i - 1, j) depend(sink : i, j - 1)
            grid[i][j] = (grid[i - 1][j] + grid[i][j - 1]) % 1009;
#pragma omp ordered depend(source)
        }
    printf("orders %d %d\n", next, grid[SIDE - 1][SIDE - 1]);
}

struct pair {
    int left, right;
};

static int untied(int depth) {
    int left = 0, right = 0;
    if (depth < 2)
        return depth;
#pragma omp task untied shared(left)
    {
        left = untied(depth - 1);
#pragma omp taskyield
        left += 0;
    }
#pragma omp task untied shared(right)
    {
#pragma omp taskyield
        right = untied(depth - 2);
    }
#pragma omp taskwait
    return left + right;
}

/* Tasks of every kind. */
static void kinds(void) {
    int found = 0, waited = 0, set = 0, order[30], next = 0, late = -1, inner = 0;
    long sums[3] = {0}, total = 0, strict[10] = {0};
    struct pair pair = {1, 2};
    omp_depend_t object;
#pragma omp parallel
#pragma omp single
    {
        found = untied(12);
#pragma omp task depend(out : waited) shared(waited)
        waited = 7;
#pragma omp taskwait depend(in : waited)
        check(waited == 7, "taskwait with a dependence");
#pragma omp depobj(object) depend(inout : next)
        for (int i = 0; i < 30; i++)
#pragma omp task depend(depobj : object) firstprivate(pair)
            order[next++] = i + pair.left;
#pragma omp taskwait
#pragma omp depobj(object) destroy
        for (int i = 0; i < 20; i++)
#pragma omp task depend(mutexinoutset : set) shared(set)
            set++;
#pragma omp task depend(in : set) shared(set)
        check(set == 20, "a task after those that exclude each other");
#pragma omp taskwait
#pragma omp taskloop lastprivate(late) firstprivate(pair) num_tasks(5)
        for (int i = 10; i > 0; i -= 3)
            late = i + pair.right;
#pragma omp taskloop collapse(2) grainsize(4) shared(strict)
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 5; j++)
                strict[5 * i + j] = 10 * i + j;
#pragma omp taskgroup task_reduction(+ : total)
        {
#pragma omp task in_reduction(+ : total)
            {
                total += 5;
#pragma omp taskgroup task_reduction(+ : inner)
                for (int i = 0; i < 8; i++)
#pragma omp task in_reduction(+ : inner, total)
                {
                    inner += i;
                    total += 1;
                }
            }
#pragma omp taskloop in_reduction(+ : total) nogroup
            for (int i = 0; i < 100; i++)
                total += i;
        }
#pragma omp taskgroup task_reduction(+ : sums)
        for (int i = 0; i < 40; i++)
#pragma omp task in_reduction(+ : sums)
            sums[i % 3] += i;
#pragma omp task final(1) shared(found)
#pragma omp task shared(found)
        check(omp_in_final(), "tasks in a final task");
    }
    for (int i = 0; i < 30; i++)
        check(order[i] == i + 1, "tasks in a row");
    for (int i = 0; i < 10; i++)
        check(strict[i] == 10 * (i / 5) + i % 5, "a loop over two variables in tasks");
    check(inner == 28, "an inner reduction");
    printf("kinds %d %d %ld %ld %ld %ld\n", found, late, total, sums[0], sums[1], sums[2]);
}

static int kept = 5;
static struct pair own = {3, 4};
#pragma omp threadprivate(kept, own)

/* A result for all threads, from some pages further down the stack of the thread that has it. */
__attribute__((noinline)) static long passed_down(int depth, long value) {
    volatile char room[3000];
    long passed = 0;
    room[0] = (char)value;
    if (depth > 0)
        return passed_down(depth - 1, value + (room[0] & 0));
#pragma omp single copyprivate(passed)
    passed = value;
    return passed + (room[0] & 0);
}

/* Such results one after the other, the last one at the end of a region. */
static void passed_at_ends(void) {
    for (int region = 0; region < 20; region++) {
#pragma omp parallel
        {
            for (int depth = 0; depth < 4; depth++)
                check(passed_down(depth, region + depth) == region + depth, "copyprivate at each depth");
            long last[40];
#pragma omp single copyprivate(last)
            for (int i = 0; i < 40; i++)
                last[i] = region;
            check(last[0] == region && last[39] == region, "copyprivate of an array");
#pragma omp single copyprivate(last)
            last[0] = 0;
        }
    }
}

/* Variables of each thread, and copies of them. */
static void copies(void) {
    int threads = omp_get_max_threads(), sum = 0, *places[64] = {0}, many[5] = {0};
    double one = 0;
    check(threads <= 64, "the number of threads");
#pragma omp parallel reduction(+ : sum)
    {
        check(kept == 5 && own.right == 4, "how thread-private variables begin");
        kept += omp_get_thread_num();
        own.left = kept;
        places[omp_get_thread_num()] = &kept;
#pragma omp barrier
        for (int i = 0; i < omp_get_num_threads(); i++)
            check(*places[i] == 5 + i, "variables of other threads");
#pragma omp barrier
    }
    kept = 100;
#pragma omp parallel copyin(kept, own) reduction(+ : sum) private(many, one)
    {
        check(kept == 100 && own.left == 5, "copyin");
#pragma omp single copyprivate(many, one, kept)
        {
            for (int i = 0; i < 5; i++)
                many[i] = i * i;
            one = 0.5;
            kept = 77;
        }
        check(many[4] == 16 && one == 0.5 && kept == 77, "copyprivate of several variables");
        sum += kept;
    }
    check(sum == 77 * threads, "their sum");
    passed_at_ends();
    printf("copies %d\n", kept);
}

/* Reductions with and without a barrier, of several variables and of arrays. */
static void sums(void) {
    int least = INT_MAX, most = 0, all = ~0, any = 0, odd = 0, counts[7] = {0};
    double product = 1;
    struct pair both = {0, 0};
#pragma omp declare reduction(add : struct pair : omp_out.left += omp_in.left, omp_out.right += omp_in.right)         \
    initializer(omp_priv = (struct pair){0, 0})
#pragma omp parallel
    {
#pragma omp for reduction(min : least) reduction(max : most) reduction(* : product) nowait
        for (int i = 1; i <= 20; i++) {
            least = least < i ? least : i;
            most = most > i ? most : i;
            product *= i;
        }
#pragma omp for reduction(& : all) reduction(| : any) reduction(^ : odd) reduction(add : both)
        for (int i = 0; i < 64; i++) {
            all &= ~(1 << (i % 5));
            any |= 1 << (i % 9);
            odd ^= i;
            both.left += i;
            both.right -= i;
        }
#pragma omp sections reduction(+ : counts)
        {
#pragma omp section
            counts[1] += 10;
#pragma omp section
            counts[1] += 20;
#pragma omp section
            counts[6] += 5;
        }
#pragma omp masked
        check(both.left == 2016 && both.right == -2016, "a reduction that the program defines");
    }
    printf("sums %d %d %d %d %d %.0f %d %d\n", least, most, all, any, odd, product, counts[1], counts[6]);
}

/* Locks, and code that one thread runs. */
static void locks(void) {
    int count = 0, depth = 0, hinted = 0, flag = 0, ran = 0, seen = 0;
    struct {
        int before;
        omp_nest_lock_t lock;
        int after;
    } nested = {.before = 1, .after = 2};
    omp_lock_t lock;
    omp_init_lock(&lock);
    omp_init_nest_lock(&nested.lock);
#pragma omp parallel reduction(+ : ran)
    {
        for (int i = 0; i < 10; i++) {
            while (!omp_test_lock(&lock))
                ;
            count++;
            omp_unset_lock(&lock);
            omp_set_nest_lock(&nested.lock);
            omp_set_nest_lock(&nested.lock);
            depth++;
            omp_unset_nest_lock(&nested.lock);
            omp_unset_nest_lock(&nested.lock);
#pragma omp critical(hinted) hint(omp_sync_hint_speculative)
            hinted++;
        }
#pragma omp master
        ran++;
#pragma omp barrier
#pragma omp single
        {
            seen = 1;
#pragma omp flush
#pragma omp atomic write seq_cst
            flag = 1;
        }
        int value = 0;
        while (!value) {
#pragma omp atomic read seq_cst
            value = flag;
        }
        check(seen == 1, "what a thread has done before it set a flag");
    }
    omp_destroy_lock(&lock);
    omp_destroy_nest_lock(&nested.lock);
    check(nested.before == 1 && nested.after == 2, "the length of a nested lock");
    int threads = omp_get_max_threads();
    check(count == 10 * threads && depth == 10 * threads && hinted == depth && ran == 1, "locks");
    printf("locks\n");
}

#pragma omp declare target
static int scale = 3;
static int times(int number) {
    return number * scale;
}
#pragma omp end declare target

/* Code for devices, of which there are none. */
static void targets(void) {
    int total = 0, copy = 7;
    double values[100];
    for (int i = 0; i < 100; i++)
        values[i] = i;
#pragma omp target map(tofrom : total) firstprivate(copy)
    total += times(copy);
#pragma omp target data map(tofrom : values)
    {
#pragma omp target teams distribute parallel for
        for (int i = 0; i < 100; i++)
            values[i] += scale;
#pragma omp target update from(values)
    }
#pragma omp teams num_teams(2) thread_limit(1)
#pragma omp distribute
    for (int i = 0; i < 100; i++)
        values[i]++;
    printf("targets %d %g %g\n", total, values[0], values[99]);
}

/* With OMP_CANCELLATION=true. */
static void cancelled(void) {
    int count = 0, sections = 0;
#pragma omp parallel
    {
        for (int round = 0; round < 3; round++) {
#pragma omp for
            for (int i = 0; i < 3000000; i++) {
#pragma omp cancel for if (i == 0)
#pragma omp cancellation point for
                if (i % 1000 == 999) {
#pragma omp atomic
                    count++;
                }
            }
        }
#pragma omp sections
        {
#pragma omp section
            {
#pragma omp cancel sections
#pragma omp atomic
                sections++;
            }
#pragma omp section
#pragma omp atomic
            sections += 0;
        }
    }
    check(count < 9000, "cancelled loops end early");
    check(sections == 0, "a cancelled section ends");
    passed_at_ends();
    printf("cancelled\n");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"arguments", arguments}, {"bounds", bounds}, {"orders", orders}, {"kinds", kinds},
                 {"copies", copies},       {"sums", sums},     {"locks", locks},   {"targets", targets},
                 {"cancelled", cancelled}};
    for (int given = 1; given < argc; given++)
        for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
            if (!strcmp(argv[given], parts[part].name))
                parts[part].run();
    return 0;
}
