/* Every construct of OpenMP that a team shares, each checked: prints what it has found, which depends neither
 * on the number of threads nor on where they run. Built by the system's compiler with -fopenmp.
 *
 * Usage: openmp PART...   with the parts below. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 1000
#define SIDE 24

static int data[COUNT];
static int per_thread[64];
#pragma omp threadprivate(per_thread)
static int *addresses[64];

static void check(int ok, const char *what) {
    if (!ok) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

static void regions(void) {
    int threads = 0, seen[64] = {0};
#pragma omp parallel
    {
#pragma omp single
        threads = omp_get_num_threads();
        seen[omp_get_thread_num()]++;
        check(omp_in_parallel() == (omp_get_num_threads() > 1), "omp_in_parallel");
        check(omp_get_level() == 1, "omp_get_level");
    }
    check(threads == omp_get_max_threads(), "the number of threads");
    for (int i = 0; i < threads; i++)
        check(seen[i] == 1, "each thread runs a region once");
    int fewer = threads > 1 ? threads - 1 : 1, count = 0;
#pragma omp parallel num_threads(fewer) reduction(+ : count)
    {
        count++;
#pragma omp barrier
#pragma omp parallel
        {
            check(omp_get_level() == 2 && omp_get_ancestor_thread_num(0) == 0, "nested levels");
            check(omp_get_team_size(1) == fewer, "the outer team");
#pragma omp barrier
        }
#pragma omp barrier
    }
    check(count == fewer, "num_threads");
    int more = 2 * threads + 1, sum = 0;
#pragma omp parallel num_threads(more) reduction(+ : sum)
    {
        check(omp_get_num_threads() == more, "more threads than there are places");
        sum += omp_get_thread_num();
#pragma omp barrier
    }
    check(sum == threads * more, "each of them has a number of its own");
    int times = 0;
#pragma omp parallel if (times == 1)
    times += omp_get_num_threads();
    check(times == 1, "if");
    double start = omp_get_wtime();
    check(omp_get_wtime() >= start && omp_get_wtick() > 0, "omp_get_wtime");
    printf("regions\n");
}

static void loops(void) {
    const int chunks[] = {1, 7, 100};
    for (int c = 0; c < 3; c++) {
        int chunk = chunks[c];
        long sum = 0;
        memset(data, 0, sizeof data);
#pragma omp parallel reduction(+ : sum)
        {
#pragma omp for schedule(static)
            for (int i = 0; i < COUNT; i++)
                data[i]++;
#pragma omp for schedule(static, chunk) nowait
            for (int i = COUNT - 1; i >= 0; i -= 3)
                sum += i;
#pragma omp for schedule(dynamic, chunk) nowait
            for (int i = 5; i < COUNT; i += 5)
                sum += i;
#pragma omp for schedule(guided, chunk) nowait
            for (unsigned long i = COUNT; i > 0; i -= 4)
                sum += (long)i;
#pragma omp for schedule(runtime)
            for (unsigned long long i = 0; i < COUNT; i++)
                data[i]++;
#pragma omp for schedule(auto) collapse(2)
            for (int i = 0; i < 10; i++)
                for (int j = 0; j < COUNT / 10; j++)
                    data[i * (COUNT / 10) + j]++;
        }
        for (int i = 0; i < COUNT; i++)
            check(data[i] == 3, "each iteration is run once");
        printf("loops by %d: %ld\n", chunk, sum);
    }
    int last = 0;
#pragma omp parallel for schedule(monotonic : dynamic) lastprivate(last)
    for (int i = 0; i < COUNT; i += 6)
        last = i;
    check(last == 996, "lastprivate");
    long many = 0;
#pragma omp parallel reduction(+ : many)
    for (int round = 0; round < 200; round++) {
#pragma omp for schedule(dynamic) nowait
        for (int i = 0; i < 4; i++)
            many += i;
    }
    check(many == 1200, "loops that no barrier parts");
    printf("last %d\n", last);
}

static void ordered(void) {
    int next = 0;
#pragma omp parallel for ordered schedule(dynamic, 3)
    for (int i = 0; i < 60; i++) {
        if (i % 5 == 4)
            continue;
#pragma omp ordered
        {
            check(data[next] >= 0 && i == next + next / 4, "the order of iterations");
            next++;
        }
    }
    check(next == 48, "all ordered iterations");
    static long grid[SIDE][SIDE];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            grid[i][j] = 1;
#pragma omp parallel for ordered(2) schedule(static, 1)
    for (int i = 1; i < SIDE; i++)
        for (int j = 1; j < SIDE; j++) {
#pragma omp ordered depend(sink : i - 1, j) depend(sink : i, j - 1)
            grid[i][j] = (grid[i - 1][j] + grid[i][j - 1]) % 100003;
#pragma omp ordered depend(source)
        }
    enum { MANY = 20000, STEP = 5000 };
    static int reached[MANY];
#pragma omp parallel for ordered(1) schedule(static, STEP)
    for (int i = 0; i < MANY; i++) {
        if (i % STEP == 0) {
#pragma omp ordered depend(sink : i - 1)
            check(i == 0 || reached[i - 1] == i - 1, "an iteration waits for one of another thread");
        }
        reached[i] = i;
#pragma omp ordered depend(source)
    }
    printf("ordered %ld\n", grid[SIDE - 1][SIDE - 1]);
}

static void sharing(void) {
    int sum = 0, ran[6] = {0}, passed = 0, once = 0, named = 0, unnamed = 0, threads = omp_get_max_threads();
    long double wide = 0;
    double product = 1;
    int largest = -1;
    omp_lock_t lock;
    omp_nest_lock_t nested;
    omp_init_lock(&lock);
    omp_init_nest_lock(&nested);
#pragma omp parallel private(passed)
    {
#pragma omp sections
        {
#pragma omp section
            ran[0]++;
#pragma omp section
            ran[1]++;
#pragma omp section
            ran[2]++;
        }
#pragma omp single copyprivate(passed)
        passed = 42;
        check(passed == 42, "copyprivate");
        for (int i = 0; i < 20; i++) {
#pragma omp critical(name)
            named++;
#pragma omp critical
            unnamed++;
#pragma omp atomic
            sum += i;
#pragma omp atomic
            wide += 0.5L;
            omp_set_lock(&lock);
            once++;
            omp_unset_lock(&lock);
            omp_set_nest_lock(&nested);
            check(omp_test_nest_lock(&nested) == 2, "the depth of a nested lock");
            ran[3]++;
            omp_unset_nest_lock(&nested);
            omp_unset_nest_lock(&nested);
#pragma omp single nowait
            ran[4]++;
        }
#pragma omp barrier
#pragma omp master
        ran[5]++;
#pragma omp for reduction(* : product) reduction(max : largest)
        for (int i = 1; i <= 10; i++) {
            product *= i;
            largest = largest > i ? largest : i;
        }
    }
    omp_destroy_lock(&lock);
    omp_destroy_nest_lock(&nested);
    check(ran[0] == 1 && ran[1] == 1 && ran[2] == 1, "each section is run once");
    check(sum == 190 * threads && named == 20 * threads && unnamed == 20 * threads, "critical and atomic");
    check(wide == 10 * threads, "atomic operations on long doubles");
    check(once == 20 * threads && ran[3] == 20 * threads, "locks");
    check(ran[4] == 20 && ran[5] == 1, "single and master");
    printf("sharing %.0f %d\n", product, largest);
}

static void threadprivate(void) {
    for (int i = 0; i < 64; i++)
        per_thread[i] = i;
#pragma omp parallel copyin(per_thread)
    {
        int me = omp_get_thread_num();
        for (int i = 0; i < 64; i++)
            check(per_thread[i] == i, "copyin");
        per_thread[0] = 1000 + me;
        addresses[me] = per_thread;
#pragma omp barrier
        for (int i = 0; i < omp_get_num_threads(); i++)
            check(addresses[i][0] == 1000 + i, "addresses of threadprivate variables");
#pragma omp barrier
        addresses[(me + 1) % omp_get_num_threads()][1] = me;
    }
#pragma omp parallel
    {
        int threads = omp_get_num_threads();
        check(per_thread[0] == 1000 + omp_get_thread_num(), "threadprivate variables stay");
        check(per_thread[1] == (omp_get_thread_num() + threads - 1) % threads, "written by another thread");
    }
    printf("threadprivate\n");
}

static int fibonacci(int n) {
    int left, right;
    if (n < 2)
        return n;
#pragma omp task shared(left)
    left = fibonacci(n - 1);
#pragma omp task shared(right)
    right = fibonacci(n - 2);
#pragma omp taskwait
    return left + right;
}

static void tasks(void) {
    int found = 0, order[40], next = 0, first = 0, second = 0, done = 0, begun = 0;
    long by_group = 0, by_loop = 0, by_region = 0, by_share = 0;
#pragma omp parallel
    {
#pragma omp single
        found = fibonacci(17);
#pragma omp single
        {
            for (int i = 0; i < 40; i++)
#pragma omp task depend(inout : next)
                order[next++] = i;
#pragma omp task depend(out : first) shared(first)
            first = 5;
#pragma omp task depend(in : first) depend(out : second) shared(first, second)
            second = first + 1;
#pragma omp task depend(in : second) shared(second) if (0)
            check(second == 6, "an undeferred task waits for what it depends on");
#pragma omp taskgroup task_reduction(+ : by_group)
            for (int i = 0; i < 50; i++)
#pragma omp task in_reduction(+ : by_group)
                by_group += i;
            check(by_group == 1225, "a reduction over a group of tasks");
#pragma omp taskloop reduction(+ : by_loop) num_tasks(9)
            for (int i = 0; i < 1000; i++)
                by_loop += i;
#pragma omp taskloop grainsize(64) nogroup
            for (unsigned long i = 0; i < COUNT; i++)
                data[i] = (int)i;
#pragma omp taskwait
            for (int i = 0; i < COUNT; i++)
                check(data[i] == i, "each iteration of a taskloop is run");
            omp_event_handle_t event;
#pragma omp task detach(event)
            begun = 1;
#pragma omp task shared(done)
            {
                done = 1;
                omp_fulfill_event(event);
            }
#pragma omp taskwait
            check(begun && done, "a task that waits for an event");
#pragma omp task final(1)
            check(omp_in_final(), "omp_in_final");
        }
#pragma omp task shared(done)
#pragma omp atomic
        done++;
#pragma omp barrier
        check(done == 1 + omp_get_num_threads(), "tasks are done at a barrier");
    }
#pragma omp parallel reduction(task, + : by_region)
#pragma omp for
    for (int i = 0; i < 20; i++)
#pragma omp task in_reduction(+ : by_region)
        by_region += i;
#pragma omp parallel
#pragma omp for reduction(task, + : by_share) schedule(dynamic, 3)
    for (int i = 0; i < 20; i++)
#pragma omp task in_reduction(+ : by_share)
        by_share += i;
    for (int i = 0; i < 40; i++)
        check(order[i] == i, "the order of tasks that depend on each other");
    printf("tasks %d %ld %ld %ld\n", found, by_loop, by_region, by_share);
}

/* With OMP_CANCELLATION=true. */
static void cancelled(void) {
    int count = 0, behind = 0, searched = 0;
    check(omp_get_cancellation(), "omp_get_cancellation");
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (int i = 0; i < 100000; i++) {
#pragma omp atomic
            count++;
#pragma omp cancel for if (i == 10)
        }
    }
    check(count < 100000, "a cancelled loop ends early");
#pragma omp parallel
    {
        int me = omp_get_thread_num();
#pragma omp barrier
#pragma omp cancel parallel if (me == 0)
#pragma omp barrier
#pragma omp cancellation point parallel
#pragma omp atomic
        behind++;
    }
    check(behind == 0, "a cancelled region ends early");
#pragma omp parallel
#pragma omp single
#pragma omp taskgroup
    for (int i = 0; i < 20000; i++)
#pragma omp task
    {
#pragma omp atomic
        searched++;
#pragma omp cancel taskgroup if (i == 5)
    }
    check(searched < 20000, "a cancelled group ends early");
    printf("cancelled\n");
}

static void devices(void) {
    int total = 0, teams = 0, league = 0, copy = 7;
    double *block = omp_alloc(COUNT * sizeof *block, omp_default_mem_alloc);
#pragma omp target map(tofrom : total) firstprivate(copy)
    {
        check(omp_is_initial_device(), "target runs on the host");
#pragma omp parallel for reduction(+ : total)
        for (int i = 0; i < COUNT; i++)
            total += i;
        copy++;
    }
#pragma omp target data map(to : copy)
#pragma omp target teams distribute parallel for map(from : block[0 : COUNT])
    for (int i = 0; i < COUNT; i++)
        block[i] = copy;
#pragma omp teams num_teams(3) reduction(+ : teams) reduction(max : league)
    {
        teams++;
        league = omp_get_num_teams();
    }
    check(teams == league && league <= 3, "each team runs once");
    check(copy == 7 && block[COUNT - 1] == 7, "firstprivate and map");
    omp_free(block, omp_default_mem_alloc);
    printf("devices %d\n", total);
}

static void say_goodbye(void) {
    printf("goodbye\n");
}

/* The last thread ends the program while the others wait for it. */
static void leaving(void) {
    atexit(say_goodbye);
#pragma omp parallel
    {
#pragma omp barrier
        if (omp_get_thread_num() == omp_get_num_threads() - 1)
            exit(5);
#pragma omp barrier
    }
}

static void settings(void) {
    omp_sched_t kind;
    int chunk;
    omp_set_schedule(omp_sched_guided, 5);
    omp_get_schedule(&kind, &chunk);
    check(kind == omp_sched_guided && chunk == 5, "omp_set_schedule");
#pragma omp parallel
    {
        omp_sched_t inherited;
        int of_thread;
        omp_get_schedule(&inherited, &of_thread);
        check(inherited == omp_sched_guided && of_thread == 5, "settings reach all threads");
    }
    char text[16];
    omp_set_affinity_format("thread %n");
    check(omp_capture_affinity(text, sizeof text, NULL) == 8 && !strcmp(text, "thread 0"), "omp_capture_affinity");
    omp_set_num_threads(1);
    check(omp_get_max_threads() == 1, "omp_set_num_threads");
#pragma omp parallel
    check(omp_get_num_threads() == 1, "one thread");
    omp_set_dynamic(1);
    check(omp_get_dynamic() && omp_get_num_devices() == 0 && omp_is_initial_device(), "queries");
    printf("settings\n");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"regions", regions}, {"loops", loops},
                 {"ordered", ordered}, {"sharing", sharing},
                 {"threadprivate", threadprivate}, {"tasks", tasks},
                 {"cancelled", cancelled}, {"devices", devices},
                 {"leaving", leaving},     {"settings", settings}};
    for (int given = 1; given < argc; given++)
        for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
            if (!strcmp(argv[given], parts[part].name))
                parts[part].run();
    return 0;
}
