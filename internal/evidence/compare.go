package evidence

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// DeriveCell reads the facts of one cell of the attempt in dir.
func DeriveCell(ctx context.Context, dir, id string) (Facts, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := walk(root)
	if err != nil {
		return nil, err
	}
	files := &rootFiles{root, path.Join(cellsDir, id), names}
	if own, _ := files.Names(); len(own) == 0 {
		return nil, fmt.Errorf("the attempt has no cell %s: %w", id, fs.ErrNotExist)
	}
	return Derive(ctx, files)
}

// Compare shows facts beside those that are wanted: "  " before what is in both,
// "+ " before what is not wanted, "- " before what is missing.
func Compare(want, got Facts) (lines Facts) {
	// common[i][j] is the length of the longest common part of want[i:] and got[j:].
	common := make([][]int, len(want)+1)
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			lines = append(lines, "  "+want[i])
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "- "+want[i])
			i++
		default:
			lines = append(lines, "+ "+got[j])
			j++
		}
	}
	return lines
}
