/* Places of threads: each thread runs on a processor of its place. Usage: openmp_places bound|free. Prints
 * what went wrong and returns 1, or "as asked". */
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static int wrong;

static void expect(int is_so, const char *what) {
    if (!is_so) {
#pragma omp critical
        {
            printf("thread %d: %s\n", omp_get_thread_num(), what);
            wrong = 1;
        }
    }
}

static int is_among(int processor, const int *ids, int count) {
    for (int i = 0; i < count; i++)
        if (ids[i] == processor)
            return 1;
    return 0;
}

static void look(int is_bound) {
    int ids[1024], numbers[1024], places = omp_get_num_places(), place = omp_get_place_num();
    expect(omp_get_proc_bind() == omp_proc_bind_false || is_bound, "threads are bound");
    if (!is_bound) {
        expect(place == -1, "a place where none is asked for");
        return;
    }
    expect(places > 0 && place >= 0 && place < places, "a place among those of the node");
    int count = omp_get_place_num_procs(place);
    expect(count > 0 && count <= 1024, "processors of the place");
    omp_get_place_proc_ids(place, ids);
    expect(omp_get_partition_num_places() == places, "as many places in the partition");
    omp_get_partition_place_nums(numbers);
    expect(is_among(place, numbers, places), "the place among those of the partition");
    expect(omp_get_place_num_procs(places) == 0 && omp_get_place_num_procs(-1) == 0, "no other places");
    for (int turn = 0; turn < 100; turn++) {
        expect(is_among(sched_getcpu(), ids, count), "a processor of the place");
        sched_yield();
    }
}

int main(int argc, char **argv) {
    int is_bound = argc > 1 && strcmp(argv[1], "bound") == 0;
    look(is_bound);
    for (int region = 0; region < 3; region++) {
#pragma omp parallel
        look(is_bound);
    }
    if (!wrong)
        printf("as asked\n");
    return wrong;
}
