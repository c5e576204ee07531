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
			return fmt.Errorf("make network namespaces: %w [needs CAP_SYS_ADMIN and a kernel with CONFIG_NET_NS]", err)
		}
		out, err := exec.Command("nft", "add table inet probe").CombinedOutput()
		if err != nil {
			line, _, _ := bytes.Cut(out, []byte("\n"))
			return fmt.Errorf("this kernel has no nf_tables: %s [needs CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET]", line)
		}
		return nil
	})
}
