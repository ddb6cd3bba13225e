// Ports that divide their bandwidth among the messages that they carry.
#include <algorithm>
#include <limits>

#include "simulator/ports.h"

namespace a2a::simulator {
namespace {

class SharedPorts {
 public:
  SharedPorts(std::vector<Source>& sources, int ports, double link, int window, double longest, const Ended& ended)
      : sources_(sources),
        link_(link),
        least_step_(longest / steps(sources.size(), window)),
        ended_(ended),
        next_(sources.size()),
        out_(static_cast<size_t>(ports)),
        in_(static_cast<size_t>(ports)) {
    for (size_t i = 0; i < sources.size(); ++i) {
      for (int k = 0; k < window; ++k) begin(i, 0, 0);
    }
  }

  double run() {
    double last = 0;
    while (!flows_.empty()) {
      divide();
      double step = std::numeric_limits<double>::infinity();
      for (const Flow& flow : flows_) step = std::min(step, flow.left / flow.rate);
      last = advance(std::max(step, least_step_));
    }
    return last;
  }

 private:
  // The time of the model advances in steps that are not shorter than such a part of the whole. A message that ends
  // within a step hands the rest of the step to the next one of its source. The more messages are under way, the less
  // the exact end of one matters.
  static double steps(size_t sources, int window) {
    return std::clamp(1e8 / (static_cast<double>(sources) * window), 500.0, 4000.0);
  }
  // After so many rounds the rates of flows are close to those at which no port has bandwidth left that a flow could
  // use without taking it from a slower one (max-min fairness).
  static constexpr int kRounds = 6;

  struct Flow {
    size_t source = 0;
    Send send;
    double left = 0, begin = 0, rate = 0;
  };
  struct Port {
    double rate = 0;  // that it can have
    double share = 0, used = 0;
    int limited = 0;
    double ahead = 0;  // bytes that it has received before its turn, in the rest of a step
  };

  bool begin(size_t source, double when, double done) {
    const auto& sends = sources_[source].sends;
    if (next_[source] == sends.size()) return false;
    const Send& send = sends[next_[source]++];
    flows_.push_back({source, send, send.work - done, when, link_});
    in(flows_.back()).ahead += done;
    return true;
  }

  Port& out(const Flow& flow) { return out_[static_cast<size_t>(sources_[flow.source].port)]; }
  Port& in(const Flow& flow) { return in_[static_cast<size_t>(flow.send.port)]; }

  // Sets the rate of every flow.
  void divide() {
    for (auto* const ports : {&out_, &in_}) {
      for (Port& port : *ports)
        port = {.rate = link_ - std::min(port.ahead / least_step_, link_ / 2), .ahead = port.ahead};
    }
    for (const Flow& flow : flows_) ++out(flow).limited, ++in(flow).limited;
    for (auto* const ports : {&out_, &in_}) {
      for (Port& port : *ports) port.share = port.limited == 0 ? port.rate : port.rate / port.limited;
    }
    for (int round = 0; round < kRounds; ++round) {
      for (auto* const ports : {&out_, &in_}) {
        for (Port& port : *ports) port.used = 0, port.limited = 0;
      }
      for (Flow& flow : flows_) {
        Port &from = out(flow), &to = in(flow);
        flow.rate = std::min(from.share, to.share);
        // A port divides what flows leave that another port limits.
        from.share <= to.share ? void(++from.limited) : void(from.used += flow.rate);
        to.share <= from.share ? void(++to.limited) : void(to.used += flow.rate);
      }
      for (auto* const ports : {&out_, &in_}) {
        for (Port& port : *ports) {
          if (port.limited > 0) {
            port.share = std::max(port.rate - port.used, 0.0) / port.limited;
          } else if (port.used < port.rate) {
            port.share = std::max(port.share, port.rate - port.used);
          }
        }
      }
    }
    keep_within_links();
  }

  void keep_within_links() {
    for (auto* const ports : {&out_, &in_}) {
      for (Port& port : *ports) port.used = 0;
    }
    for (Flow& flow : flows_) {
      flow.rate = std::max(std::min(out(flow).share, in(flow).share), link_ * 1e-9);
      out(flow).used += flow.rate;
      in(flow).used += flow.rate;
    }
    for (Flow& flow : flows_) {
      flow.rate *= std::min({1.0, out(flow).rate / out(flow).used, in(flow).rate / in(flow).used});
    }
  }

  // Returns when the last message ended.
  double advance(double step) {
    double last = now_;
    for (Port& port : in_) port.ahead = std::max(port.ahead - (link_ - port.rate) * step, 0.0);
    const size_t count = flows_.size();
    std::vector<char> over(count);
    for (size_t i = 0; i < count; ++i) {
      Flow& flow = flows_[i];
      flow.left -= flow.rate * step;
      if (flow.left > flow.send.work * 1e-12) continue;
      over[i] = 1;
      follow(flow, step, last);
    }
    std::erase_if(flows_,
                  [&, i = size_t{0}](const Flow&) mutable { return i < count ? over[i++] != 0 : (++i, false); });
    now_ += step;
    return last;
  }

  // Ends a flow within this step, and lets the next ones of its source use the rest of the step.
  void follow(Flow flow, double step, double& last) {
    double surplus = -flow.left;
    for (;;) {
      const double end = now_ + step - surplus / flow.rate;
      ended_(static_cast<int>(flow.source), flow.send, flow.begin, end);
      last = std::max(last, end);
      if (!begin(flow.source, end, surplus)) return;
      if (flows_.back().left > 0) return;
      const double rate = flow.rate;
      flow = flows_.back();
      flow.rate = rate;
      flows_.pop_back();
      surplus = -flow.left;
    }
  }

  std::vector<Source>& sources_;
  const double link_, least_step_;
  const Ended& ended_;
  std::vector<size_t> next_;  // by source
  std::vector<Flow> flows_;
  std::vector<Port> out_, in_;
  double now_ = 0;
};

}  // namespace

double run_shared_ports(std::vector<Source>& sources, int ports, double link, int window, double longest,
                        const Ended& ended) {
  return SharedPorts(sources, ports, link, window, longest, ended).run();
}

}  // namespace a2a::simulator
