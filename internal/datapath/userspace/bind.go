package userspace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstPort has the lowest port on which a process without CAP_NET_BIND_SERVICE may listen.
const firstPort = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// mayBind returns an error if this thread may not listen on every port. Services have ports below 1024. Without the
// right each connection to such a port would fail, and its client would get no answer.
func mayBind() error {
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return fmt.Errorf("read the process's capabilities: %w", err)
	}
	if caps[0].Effective&(1<<unix.CAP_NET_BIND_SERVICE) != 0 {
		return nil
	}
	text, err := os.ReadFile(firstPort)
	if err != nil {
		return fmt.Errorf("read which ports need no rights: %w", err)
	}
	if first, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && first <= 1 {
		return nil
	}
	return errors.New("mode userspace listens on the Services' own ports, and this process has no right to those below 1024 [add CAP_NET_BIND_SERVICE: the component deploy/components/userspace does]")
}
