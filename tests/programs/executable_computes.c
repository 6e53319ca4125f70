/*
 * Computes for 300 ms of processor time, and prints whether the kernel gives this process an event of it.
 */
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long processor_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(void)
{
    struct perf_event_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.size = sizeof attributes;
    attributes.config = PERF_COUNT_SW_TASK_CLOCK;
    attributes.sample_period = 1000000;
    attributes.exclude_kernel = attributes.exclude_hv = 1;
    long event = syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0UL);
    if (event >= 0)
        close((int)event);
    volatile unsigned long long steps = 0;
    for (long long begun = processor_time_ns(); processor_time_ns() - begun < 300000000LL;)
        for (int at = 0; at < 100000; at++)
            steps++;
    puts(event >= 0 ? "with events" : "without events");
    return 0;
}
