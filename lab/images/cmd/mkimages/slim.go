package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
)

// icuData is the library with ICU's language tables, 31 of the toolbox's 65 MB. dig and nslookup must load it, because
// their libdns uses libxml2 and libxml2 uses ICU. They never read its data.
const icuData = "libicudata.so"

// slim empties the ICU tables in the tree. If the library is missing or has another structure, slim leaves the tree
// unchanged, because a large toolbox works as well.
func slim(t *image.Tree) error {
	for _, name := range t.Files() {
		if !strings.HasPrefix(path.Base(name), icuData) {
			continue
		}
		err := t.Rewrite(name, func(lib []byte) ([]byte, error) {
			if small, err := cutData(lib); err == nil {
				return small, nil
			}
			return lib, nil
		})
		if err != nil {
			return fmt.Errorf("slim %s: %w", name, err)
		}
	}
	return nil
}

// page is the alignment of segments in the file. The loader maps whole pages, so a segment can move in the file by
// whole pages and keep its place in memory.
const page = 4096

// cutData cuts the content of a library's largest segment, which must be read-only, and moves the rest of the file up:
//
//	file:   | headers | code | data, 31 MB ............ | dynamic |      sizes in memory, addresses and
//	        | headers | code | 1 page | dynamic |                        symbols stay as they were
//
// The loader fills the missing content with zeros, and finds every symbol. The result has no section headers, which
// only linkers and debuggers use.
func cutData(lib []byte) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(lib))
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return nil, errors.New("not a 64-bit little-endian library")
	}
	var big *elf.Prog
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && (big == nil || p.Filesz > big.Filesz) {
			big = p
		}
	}
	if big == nil || big.Flags != elf.PF_R || big.Off%page != 0 || big.Filesz <= page {
		return nil, errors.New("the largest segment is not plain data")
	}
	end := big.Off + big.Filesz
	cut := (end &^ (page - 1)) - (big.Off + page)
	out := append(append([]byte{}, lib[:big.Off+page]...), lib[big.Off+page+cut:]...)
	return out, moveSegments(out, f, big, cut)
}

// Offsets in the ELF64 file header and in a program header.
const (
	fileSectionOff, fileSectionNum, fileSectionNames = 0x28, 0x3c, 0x3e
	fileProgOff, fileProgSize                        = 0x20, 0x36
	progOff, progFilesz                              = 0x08, 0x20
)

// moveSegments writes the new offsets of all segments into the headers of out.
func moveSegments(out []byte, f *elf.File, big *elf.Prog, cut uint64) error {
	le := binary.LittleEndian
	le.PutUint64(out[fileSectionOff:], 0)
	le.PutUint16(out[fileSectionNum:], 0)
	le.PutUint16(out[fileSectionNames:], 0)
	at, size := le.Uint64(out[fileProgOff:]), uint64(le.Uint16(out[fileProgSize:]))
	for i, p := range f.Progs {
		header := out[at+uint64(i)*size:]
		switch {
		case p == big:
			le.PutUint64(header[progFilesz:], page)
		case p.Off >= big.Off+big.Filesz:
			le.PutUint64(header[progOff:], p.Off-cut)
		case p.Off > big.Off:
			return fmt.Errorf("a %v segment lies inside the data", p.Type)
		}
	}
	return nil
}
