package fabric

import (
	"bytes"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
)

// CheckKernel returns what the kernel lacks that a lab needs, by trying it in a
// namespace that is gone when CheckKernel returns.
func CheckKernel() error {
	return do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("this kernel makes no network namespaces (CONFIG_NET_NS, CAP_SYS_ADMIN): %w", err)
		}
		out, err := exec.Command("nft", "add table inet probe").CombinedOutput()
		if err != nil {
			line, _, _ := bytes.Cut(out, []byte("\n"))
			return fmt.Errorf("this kernel has no nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET): %s", line)
		}
		return nil
	})
}
