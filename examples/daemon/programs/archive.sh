# A job that takes most of a minute, and shows how far it is.
for part in 1 2 3 4 5 6 7 8 9; do
    echo "part $part of 9"
    sleep 5
done
echo "archived"
