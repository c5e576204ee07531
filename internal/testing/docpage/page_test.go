package docpage

import "testing"

const text = "A page.\n\n```\n$ show it\nNAME   AGE\nweb-5d4f8c7b9-x2x4z  5s\n…\nkept: 3…\n```\n\n```\n$ show all\none\n```\n"

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		command, output string
		same            bool
	}{
		{"show it", "NAME AGE\nweb-7d9c4b8f5-6t7kq  17m3s\nkept: 3\n", false}, // one blank does not separate columns
		{"show it", "NAME     AGE\nweb-7d9c4b8f5-6t7kq    17m3s\nkept: 3 of 5", true},
		{"show it", "NAME     AGE\nweb-7d9c4b8f5-6t7kq    17m3s\nmore\nand more\nkept: 3 of 5\n", true},
		{"show it", "NAME     AGE\nweb-7d9c4b8f5-6t7kq    17m3s\nkept: 4\n", false},
		{"show it", "NAME     AGE\nweb-7d9c4b8f5-6t7kq    17m3s\nkept: 3\nmore\n", false},
		{"show all", "one\n", true},
		{"show all", "one\ntwo\n", false},
		{"show all", "", false},
		{"show none", "one\n", false},
	} {
		if err := compare(text, c.command, c.output); (err == nil) != c.same {
			t.Errorf("%s: %q: %v, want it to be the same: %v", c.command, c.output, err, c.same)
		}
	}
}
