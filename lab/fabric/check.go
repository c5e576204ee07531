package fabric

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CheckKernel returns an error if the kernel lacks a feature that a lab needs. It tries the features in a namespace
// that vanishes when CheckKernel returns.
func CheckKernel() error {
	return do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespaces: %w [needs CAP_SYS_ADMIN and a kernel with CONFIG_NET_NS]", err)
		}
		out, err := runNFT("", "add table inet probe")
		if err != nil {
			line, _, _ := bytes.Cut(out, []byte("\n"))
			return fmt.Errorf("this kernel has no nf_tables: %s [needs CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET]", line)
		}
		return nil
	})
}

// CheckWireGuard returns an error if the kernel has no WireGuard.
func CheckWireGuard() error {
	return do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespaces: %w", err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe"
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("this kernel has no WireGuard: %w [modprobe wireguard; or another --pod-network]", err)
		}
		return nil
	})
}

// nftLimit is the time limit of one nft command.
const nftLimit = 30 * time.Second

// runNFT runs nft in the network namespace of this thread, and returns its output.
func runNFT(stdin string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), nftLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", args...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = strings.NewReader(stdin)
	return cmd.CombinedOutput()
}
