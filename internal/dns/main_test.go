package dns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestMain runs the tests in a network namespace of their own, which has nothing
// but a loopback interface: the built-in Corefile listens on ports 53, 8080, 8181
// and 9153 of every address, and no query of a test may leave the machine.
func TestMain(m *testing.M) {
	const inside = "FAIRWAY_TEST_DNS_NAMESPACE"
	if os.Getenv(inside) != "" {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "set lo up:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		testnet.Main(m) // those that open ports are left out: see serve
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	}
	fmt.Fprintln(os.Stderr, "run tests in a network namespace:", err)
	os.Exit(1)
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
