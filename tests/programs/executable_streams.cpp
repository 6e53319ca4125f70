// Streams of the C++ library that one thread opens and others use, in a program that was not built for
// Hiroba. Prints the same wherever its threads run.
//
//     c++ -O2 -pthread -o streams executable_streams.cpp && hiroba run --pthread -n 2 ./streams

#include <cstdio>
#include <fstream>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr int threads = 4, lines = 25;

int count_lines(const std::string &path)
{
    std::ifstream in(path);
    std::string line;
    int count = 0;
    while (std::getline(in, line))
        count++;
    return count;
}

} // namespace

int main()
{
    const std::string path = "/tmp/hiroba-streams-" + std::to_string(getpid());
    std::ofstream out(path);
    std::mutex mutex;
    std::vector<std::thread> all;
    int seen_at_least = lines;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&, i] {
            for (int line = 0; line < lines; line++) {
                std::lock_guard<std::mutex> guard(mutex);
                out << "thread " << i << ", line " << line << ' ' << 0.5 * line << '\n';
            }
            std::lock_guard<std::mutex> guard(mutex);
            out.flush();
            const int seen = count_lines(path);
            if (seen < seen_at_least)
                std::cout << "wrong: " << seen << " lines" << std::endl;
            seen_at_least = seen;
        });
    for (auto &thread : all)
        thread.join();
    out.close();
    std::cout << count_lines(path) << " lines" << std::endl;
    std::remove(path.c_str());
    return 0;
}
