/* Regions inside regions, which have one thread: what a program that asks is told. Usage: openmp_nested
 * [INNER], the number of threads that OMP_NUM_THREADS has for the inner level, if it is a list. Prints what
 * went wrong and returns 1, or "as it is". */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong;

static void check(int is_right, const char *what) {
    if (!is_right) {
#pragma omp critical
        {
            wrong++;
            printf("thread %d at level %d: %s\n", omp_get_thread_num(), omp_get_level(), what);
        }
    }
}

/* Whether the calling thread is in a team of `threads`, and that in one of `outer`. */
static void inside(int level, int active, int outer, int number, int threads) {
    check(omp_get_level() == level, "its level");
    check(omp_get_active_level() == active, "how many levels are active");
    check(omp_in_parallel() == (active > 0), "whether a level is active");
    check(omp_get_num_threads() == threads && omp_get_team_size(level) == threads, "the team's size");
    check(omp_get_ancestor_thread_num(level) == omp_get_thread_num(), "its number");
    check(omp_get_ancestor_thread_num(0) == 0 && omp_get_team_size(0) == 1, "the outermost level");
    check(omp_get_ancestor_thread_num(1) == number && omp_get_team_size(1) == outer, "the first region");
    check(omp_get_ancestor_thread_num(level + 1) == -1 && omp_get_team_size(-1) == -1, "levels that it is not in");
}

int main(int argc, char **argv) {
    int all = omp_get_max_threads(), inner = argc > 1 ? atoi(argv[1]) : all, sum = 0;
    check(omp_get_max_active_levels() == 1 && omp_get_supported_active_levels() == 1, "how many levels may be active");
    check(omp_get_level() == 0 && omp_get_active_level() == 0 && !omp_in_parallel(), "no region");
    omp_set_max_active_levels(3);
    check(omp_get_max_active_levels() == 1, "as many active levels as are supported");
    check(omp_get_ancestor_thread_num(1) == -1 && omp_get_team_size(1) == -1, "no level");
#pragma omp parallel reduction(+ : sum)
    {
        int me = omp_get_thread_num(), active = all > 1;
        inside(1, active, all, me, all);
        check(omp_get_max_threads() == inner, "how many threads the inner level may have");
#pragma omp parallel num_threads(2) reduction(+ : sum)
        {
            inside(2, active, all, me, 1);
            sum += 1;
#pragma omp parallel reduction(+ : sum)
            {
                inside(3, active, all, me, 1);
                sum += 100;
            }
#pragma omp for schedule(dynamic)
            for (int i = 0; i < 10; i++)
                sum += 10000;
#pragma omp single
            sum += 1000000;
#pragma omp barrier
        }
        inside(1, active, all, me, all);
    }
    check(sum == 1100101 * all, "what inner regions compute");
    /* A region of one thread is no active one, so that the region in it has all. */
#pragma omp parallel num_threads(1)
    {
        inside(1, 0, 1, 0, 1);
#pragma omp parallel num_threads(all)
        inside(2, all > 1, 1, 0, all);
    }
    omp_set_max_active_levels(0);
#pragma omp parallel
    inside(1, 0, 1, 0, 1);
    if (!wrong)
        printf("as it is\n");
    return wrong != 0;
}
