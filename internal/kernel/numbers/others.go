package numbers

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed others.txt
var othersText string

// Others returns the numbers in others.txt: the defaults of programs that run in the network namespace of nodes.
func Others() ([]Number, error) { return parseOthers(othersText) }

// columns matches a line of others.txt. Two blanks or more separate its columns.
var columns = regexp.MustCompile(`^  (\w+)(?:-(\w+))?(?:/(\w+))? {2,}(.*?\S) {2,}(\S.*)$`)

func parseOthers(text string) (all []Number, err error) {
	space := -1
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, ok := strings.CutSuffix(line, ":"); ok && !strings.HasPrefix(line, " ") {
			if space = slices.Index(spaceNames[:], name); space < 0 {
				return nil, fmt.Errorf("others.txt:%d: %q is not a space of numbers", i+1, name)
			}
			continue
		}
		m := columns.FindStringSubmatch(line)
		if m == nil || space < 0 {
			return nil, fmt.Errorf("others.txt:%d: %q is not a number, its owner and what it is for, below the name of a space", i+1, line)
		}
		n := Number{Space: Space(space), Owner: m[4], For: m[5]}
		for column, field := range []*uint32{&n.From, &n.To, &n.Mask} {
			if m[column+1] == "" {
				continue
			}
			v, err := strconv.ParseUint(m[column+1], 0, 32)
			if err != nil {
				return nil, fmt.Errorf("others.txt:%d: %w", i+1, err)
			}
			*field = uint32(v)
		}
		all = append(all, n)
	}
	return all, nil
}
