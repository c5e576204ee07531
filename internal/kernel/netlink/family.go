package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Family returns the number of a family of generic netlink. The request makes the kernel load the family's module if
// that is allowed. The error is unix.ENOENT if there is no such family.
func Family(ctx context.Context, name string) (number uint16, err error) {
	c, err := Dial(unix.NETLINK_GENERIC)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	body := AppendText([]byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0}, unix.CTRL_ATTR_FAMILY_NAME, name)
	_, err = c.Ask(ctx, unix.GENL_ID_CTRL, 0, body, func(b []byte) error {
		return GenericAttributes(b, func(typ uint16, b []byte) error {
			if typ == unix.CTRL_ATTR_FAMILY_ID && len(b) >= 2 {
				number = binary.NativeEndian.Uint16(b)
			}
			return nil
		})
	})
	if err == nil && number == 0 {
		err = errors.New("the kernel sent no number")
	}
	return number, err
}

// GenericAttributes is Attributes for b with a header of generic netlink.
func GenericAttributes(b []byte, f func(typ uint16, b []byte) error) error {
	const header = unix.GENL_HDRLEN
	if len(b) < header {
		return fmt.Errorf("answer of %d bytes", len(b))
	}
	return Attributes(b[header:], f)
}
