package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The inotify instances that a running lab keeps open. The control plane's are in etcd and in kube-apiserver with its
// controllers. A node's are in the kubelet, containerd and the agent.
const (
	inotifyControlPlane = 9
	inotifyNode         = 7
)

// checkInotify returns an error if the kernel does not let the lab open enough inotify instances.
func (o Options) checkInotify() error {
	return spareInotify("a lab of "+count(o.Nodes, "node"), inotifyControlPlane+inotifyNode*o.Nodes)
}

// spareInotify returns an error if fewer than need inotify instances are free. Without an instance, kubelet and
// containerd end and do not report the reason.
func spareInotify(what string, need int) error {
	var open []int
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}()
	for range need {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("%s needs %d instances of inotify, and %d are left%s", what, need, len(open), inotifyAdvice())
		}
		if err != nil {
			return fmt.Errorf("open an instance of inotify: %w", err)
		}
		open = append(open, fd)
	}
	return nil
}

const inotifyLimit = "/proc/sys/fs/inotify/max_user_instances"

// inotifyAdvice returns the number of instances that a user may open, and the command that raises it.
func inotifyAdvice() string {
	text, err := os.ReadFile(inotifyLimit)
	if err != nil {
		return ""
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" of the %d that a user may have [sysctl -w fs.inotify.max_user_instances=%d]", limit, max(512, 2*limit))
}

// noInotify matches the messages of kubelet, containerd and other programs that could not open an inotify instance.
var noInotify = regexp.MustCompile(`(inotify|fsnotify|cni conf monitor|watcher).*too many open files`)

// inotifyWords names the first log of the lab that reports a missing inotify instance. It returns "" if no log does.
func (l Lab) inotifyWords() string {
	logs, err := filepath.Glob(filepath.Join(l.logs(), "*.log"))
	if err != nil {
		return ""
	}
	for _, log := range logs {
		if text, err := os.ReadFile(log); err == nil && noInotify.Match(text) {
			return fmt.Sprintf("; %s got no instance of inotify%s", strings.TrimSuffix(filepath.Base(log), ".log"), inotifyAdvice())
		}
	}
	return ""
}
