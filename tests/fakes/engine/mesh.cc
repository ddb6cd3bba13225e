#include "engine/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "engine/link.h"

namespace fake {

Mesh::Mesh(int own_rank, int ranks) : rank(own_rank), size(ranks), links_(static_cast<size_t>(ranks)) {}

Mesh::~Mesh() = default;

bool Mesh::Link::write(const Frame& frame, const void* payload) {
  const std::lock_guard lock(writing);
  const auto all = [&](const void* from, size_t bytes) {
    for (const auto* at = static_cast<const char*>(from); bytes > 0;) {
      const ssize_t sent = send(descriptor, at, bytes, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      at += sent;
      bytes -= static_cast<size_t>(sent);
    }
    return true;
  };
  return all(&frame, sizeof frame) && (!payload || all(payload, frame.header.bytes));
}

bool Mesh::Link::read(void* to, size_t bytes) const {
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = recv(descriptor, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// The one reader of all links; it never waits for anything but their bytes, so writers always get on.
void Mesh::read() {
  while (true) {
    std::vector<pollfd> open;
    std::vector<Link*> links;
    for (const auto& link : links_) {
      if (!link || link->closed) continue;
      open.push_back({link->descriptor, POLLIN, 0});
      links.push_back(link.get());
    }
    if (open.empty()) return;
    if (poll(open.data(), open.size(), -1) < 0 && errno != EINTR) return;
    for (size_t i = 0; i < open.size(); ++i) {
      if (!open[i].revents) continue;
      Frame frame;
      if (links[i]->read(&frame, sizeof frame)) {
        handle(*links[i], frame);
      } else {
        const std::lock_guard lock(mutex_);
        links[i]->closed = true;
        changed_.notify_all();
      }
    }
  }
}

void Mesh::handle(Link& link, const Frame& frame) {
  std::unique_lock lock(mutex_);
  if (frame.type == Frame::data) {
    const Landing landing = link.landings.front();
    lock.unlock();
    if (!link.read(landing.memory.data, frame.header.bytes)) return;  // the next read sees the end of the link
    lock.lock();
    if (link.landings.front().arrived) *link.landings.front().arrived = true;
    link.landings.pop_front();
  } else if (frame.type == Frame::control) {
    std::string text(frame.header.bytes, '\0');
    lock.unlock();
    if (!link.read(text.data(), text.size())) return;
    lock.lock();
    const size_t end = text.find('\0');
    link.controls[text.substr(0, end)].push_back(text.substr(end + 1));
  } else if (frame.type == Frame::announce) {
    link.announced.push_back(frame.header);
  } else if (frame.type == Frame::leave) {
    link.left = true;
  } else {
    link.answers.push_back(frame);
  }
  changed_.notify_all();
}

Failure Mesh::gone(int peer) const {
  const bool left = links_[static_cast<size_t>(peer)]->left;
  return {Failure::remote,
          "rank " + std::to_string(peer) + (left ? " has left" : " is dead") + ", says rank " + std::to_string(rank)};
}

Failure Mesh::lost() {
  const std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link && link->closed && !link->left) return gone(link->peer);
  }
  return {};
}

void Mesh::announce(const std::string& topic, const std::vector<int>& peers) {
  const std::string text = topic + '\0';
  for (const int peer : peers) {
    Frame frame{Frame::control, 0, {}};
    frame.header.bytes = text.size();
    links_[static_cast<size_t>(peer)]->write(frame, text.data());
  }
}

Failure Mesh::await(const std::string& topic, const std::vector<int>& peers, const std::function<bool()>& stop) {
  std::unique_lock lock(mutex_);
  for (const int peer : peers) {
    Link& link = *links_[static_cast<size_t>(peer)];
    while (link.controls[topic].empty()) {
      if (stop()) return {Failure::aborted, "aborted while waiting for rank " + std::to_string(peer)};
      if (link.left || link.closed) return gone(peer);
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
    link.controls[topic].pop_front();
  }
  return {};
}

Failure Mesh::gather(const std::string& topic, const std::string& mine, const std::function<bool()>& stop,
                     std::vector<std::string>& all) {
  const std::string text = topic + '\0' + mine;
  Frame frame{Frame::control, 0, {}};
  frame.header.bytes = text.size();
  for (const auto& link : links_) {
    if (link) link->write(frame, text.data());
  }
  all.assign(static_cast<size_t>(size), mine);
  std::unique_lock lock(mutex_);
  for (const auto& link : links_) {
    if (!link) continue;
    while (link->controls[topic].empty()) {
      if (stop()) return {Failure::aborted, "aborted while waiting for rank " + std::to_string(link->peer)};
      if (link->left || link->closed) return gone(link->peer);
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
    all[static_cast<size_t>(link->peer)] = link->controls[topic].front();
    link->controls[topic].pop_front();
  }
  return {};
}

void Mesh::leave() {
  for (const auto& link : links_) {
    if (link) link->write(Frame{Frame::leave, 0, {}});
  }
}

void Mesh::await_leaving(const std::function<bool()>& stop) {
  std::unique_lock lock(mutex_);
  for (const auto& link : links_) {
    while (link && !link->left && !link->closed && !stop()) changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
}

void Mesh::close() {
  for (const auto& link : links_) {
    if (link) shutdown(link->descriptor, SHUT_RDWR);
  }
}

}  // namespace fake
