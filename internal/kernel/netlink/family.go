package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Family returns the number of a family of generic netlink. The kernel loads its module for the question,
// if it may. The error is unix.ENOENT where there is none.
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
		err = errors.New("it has no number")
	}
	return number, err
}

// GenericAttributes is Attributes behind the header of generic netlink.
func GenericAttributes(b []byte, f func(typ uint16, b []byte) error) error {
	const header = unix.GENL_HDRLEN
	if len(b) < header {
		return fmt.Errorf("answer of %d bytes", len(b))
	}
	return Attributes(b[header:], f)
}
