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

// Instances of inotify that a lab has open when it stands: etcd and kube-apiserver with its controllers; kubelet,
// containerd and the agent of a node.
const (
	inotifyControlPlane = 9
	inotifyNode         = 7
)

// checkInotify returns an error if the kernel would not let a lab open as many instances of inotify as it needs.
func (o Options) checkInotify() error {
	return spareInotify("a lab of "+count(o.Nodes, "node"), inotifyControlPlane+inotifyNode*o.Nodes)
}

// spareInotify returns an error if there are not so many instances of inotify left: kubelet and containerd end without,
// and do not say why.
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

// inotifyAdvice says how many instances a user may have, and how to allow more.
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

// noInotify is how kubelet, containerd and others say that they get no instance of inotify.
var noInotify = regexp.MustCompile(`(inotify|fsnotify|cni conf monitor|watcher).*too many open files`)

// inotifyWords says so, if a log of the lab does.
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
