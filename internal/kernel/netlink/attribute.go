package netlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

const attributeHeader = 4

// attributeType has the bits of an attribute's type without flags.
const attributeType = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// Attributes calls f for each attribute in b until the first error. f gets slices of b, not copies.
func Attributes(b []byte, f func(typ uint16, b []byte) error) error {
	for len(b) > 0 {
		if len(b) < attributeHeader {
			return fmt.Errorf("attribute of %d bytes", len(b))
		}
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < attributeHeader || size > len(b) {
			return fmt.Errorf("attribute of %d bytes in %d", size, len(b))
		}
		if err := f(typ&attributeType, b[attributeHeader:size:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// AppendText appends an attribute with a text and a final zero byte.
func AppendText(b []byte, typ uint16, text string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeHeader+len(text)+1))
	b = append(binary.NativeEndian.AppendUint16(b, typ), text...)
	b = append(b, 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Append appends an attribute. content may have attributes itself.
func Append(b []byte, typ uint16, content []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeHeader+len(content)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), content...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Text returns the content of a text attribute without the final zero byte.
func Text(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] == 0 {
		return b[:len(b)-1]
	}
	return b
}
