// Ports that carry one message at a time.
#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "simulator/ports.h"

namespace a2a::simulator {
namespace {

// The sends of a source that may begin: the first ones in its order that have not begun.
struct Waiting {
  std::vector<Send> window;
  size_t next = 0;  // in the source's sends
  double left = 0;  // work that has not begun
};

class SinglePorts {
 public:
  SinglePorts(std::vector<Source>& sources, int ports, double link, int window, const Ended& ended)
      : sources_(sources),
        link_(link),
        window_(static_cast<size_t>(window)),
        ended_(ended),
        waiting_(sources.size()),
        ports_(static_cast<size_t>(ports)) {
    for (size_t i = 0; i < sources.size(); ++i) {
      port(sources[i].port).sources.push_back(i);
      for (const Send& send : sources[i].sends) waiting_[i].left += send.work;
      refill(i);
    }
  }

  double run() {
    for (int p = 0; p < static_cast<int>(ports_.size()); ++p) begin_first(p);
    for (int p = 0; p < static_cast<int>(ports_.size()); ++p) begin_any(p);
    std::vector<UnderWay> over;
    while (!under_way_.empty()) {
      now_ = under_way_.top().end;
      over.clear();
      while (!under_way_.empty() && under_way_.top().end <= now_ * (1 + 1e-12)) {
        over.push_back(under_way_.top());
        under_way_.pop();
        end(over.back());
      }
      for (const UnderWay& one : over) begin_first(sources_[one.source].port);
      for (const UnderWay& one : over) begin_into(one.send.port);
      for (const UnderWay& one : over) begin_any(sources_[one.source].port);
    }
    return now_;
  }

 private:
  struct UnderWay {
    double end = 0, begin = 0;
    uint64_t order = 0;
    size_t source = 0;
    Send send;
    bool operator>(const UnderWay& other) const { return std::tie(end, order) > std::tie(other.end, other.order); }
  };
  struct Port {
    bool sends = false, receives = false;
    std::vector<size_t> sources;
    size_t turn = 0;             // the source that is asked first
    std::vector<int> wanted_by;  // ports that had nothing else to send
    bool idle = false;           // it has been entered in such lists
  };

  Port& port(int number) { return ports_[static_cast<size_t>(number)]; }

  void refill(size_t source) {
    Waiting& waiting = waiting_[source];
    const auto& sends = sources_[source].sends;
    while (waiting.window.size() < window_ && waiting.next < sends.size()) {
      waiting.window.push_back(sends[waiting.next++]);
    }
  }

  void begin(size_t source, size_t place) {
    Waiting& waiting = waiting_[source];
    const Send send = waiting.window[place];
    waiting.window.erase(waiting.window.begin() + static_cast<ptrdiff_t>(place));
    waiting.left -= send.work;
    refill(source);
    Port& from = port(sources_[source].port);
    from.sends = true;
    from.idle = false;
    port(send.port).receives = true;
    under_way_.push({now_ + send.work / link_, now_, ++begun_, source, send});
  }

  void end(const UnderWay& one) {
    Port& from = port(sources_[one.source].port);
    from.sends = false;
    from.turn = (from.turn + 1) % from.sources.size();
    port(one.send.port).receives = false;
    ended_(static_cast<int>(one.source), one.send, one.begin, one.end);
  }

  // Begins a send of the port that meets the condition, the sources' turns permitting. Returns whether there was one.
  template <class Fits>
  bool begin_where(int number, size_t most, const Fits& fits) {
    const Port& from = port(number);
    if (from.sends) return false;
    for (size_t i = 0; i < from.sources.size(); ++i) {
      const size_t source = from.sources[(from.turn + i) % from.sources.size()];
      const auto& window = waiting_[source].window;
      for (size_t place = 0; place < std::min(most, window.size()); ++place) {
        if (!fits(window[place])) continue;
        begin(source, place);
        return true;
      }
    }
    return false;
  }

  bool can_receive(const Send& send) { return !port(send.port).receives; }
  void begin_first(int number) {
    begin_where(number, 1, [this](const Send& send) { return can_receive(send); });
  }

  void begin_any(int number) {
    Port& from = port(number);
    if (from.sends || begin_where(number, window_, [this](const Send& send) { return can_receive(send); })) return;
    if (std::exchange(from.idle, true)) return;
    for (const size_t source : from.sources) {
      for (const Send& send : waiting_[source].window) port(send.port).wanted_by.push_back(number);
    }
  }

  double left(int number) {
    double work = 0;
    for (const size_t source : port(number).sources) work += waiting_[source].left;
    return work;
  }

  // A port that can receive again takes the message of the idle port that has most left to send.
  void begin_into(int number) {
    Port& to = port(number);
    if (to.receives || to.wanted_by.empty()) return;
    std::erase_if(to.wanted_by, [this](int from) { return !port(from).idle; });
    const auto best = std::ranges::max_element(to.wanted_by, {}, [this](int from) { return left(from); });
    if (best == to.wanted_by.end()) return;
    const int from = *best;
    begin_where(from, window_, [number](const Send& send) { return send.port == number; });
  }

  std::vector<Source>& sources_;
  const double link_;
  const size_t window_;
  const Ended& ended_;
  std::vector<Waiting> waiting_;
  std::vector<Port> ports_;
  std::priority_queue<UnderWay, std::vector<UnderWay>, std::greater<>> under_way_;
  double now_ = 0;
  uint64_t begun_ = 0;
};

}  // namespace

double run_single_ports(std::vector<Source>& sources, int ports, double link, int window, const Ended& ended) {
  return SinglePorts(sources, ports, link, window, ended).run();
}

}  // namespace a2a::simulator
