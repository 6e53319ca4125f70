/* Threads meet many times; meanwhile the runtime's own thread, which starts others, should sleep. Prints how
 * often that thread had to be woken. Usage: openmp_waiting BARRIERS. */
#include <dirent.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of times that the thread of this process with this name has slept; -1 without one. */
static long sleeps_of(const char *name) {
    long sleeps = -1;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (status == NULL)
            continue;
        int is_it = 0;
        while (fgets(line, sizeof line, status) != NULL) {
            line[strcspn(line, "\n")] = 0;
            if (strncmp(line, "Name:\t", 6) == 0)
                is_it = strcmp(line + 6, name) == 0;
            if (is_it && sscanf(line, "voluntary_ctxt_switches: %ld", &sleeps) == 1)
                break;
        }
        fclose(status);
    }
    if (tasks != NULL)
        closedir(tasks);
    return sleeps;
}

int main(int argc, char **argv) {
    int barriers = argc > 1 ? atoi(argv[1]) : 1000;
    long before = sleeps_of("starter");
#pragma omp parallel
    for (int i = 0; i < barriers; i++) {
#pragma omp barrier
    }
    printf("%ld\n", before < 0 ? -1 : sleeps_of("starter") - before);
    return 0;
}
